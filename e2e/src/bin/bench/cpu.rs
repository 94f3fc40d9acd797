//! CPU time of processes, from `/proc`.

/// Clock ticks a second in `/proc/PID/stat`: fixed at 100 in the interface of Linux (`USER_HZ`).
const TICKS: f64 = 100.0;

/// CPU seconds, user and system, that a process has used; 0 for one that is gone.
pub fn seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in parentheses may hold spaces; utime and stime are fields 14 and 15 of the whole line.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: f64 =
        rest.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / TICKS
}

/// CPU seconds of several processes, by name.
#[derive(Clone, Debug, Default)]
pub struct Used(pub Vec<(&'static str, f64)>);

impl Used {
    /// What they have used so far.
    pub fn now(of: &[(&'static str, u32)]) -> Self {
        Self(of.iter().map(|(name, pid)| (*name, seconds(*pid))).collect())
    }

    /// What they have used since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let earlier = |name: &str| before.of(name);
        Self(self.0.iter().map(|(name, used)| (*name, used - earlier(name))).collect())
    }

    /// What one of them has used.
    pub fn of(&self, name: &str) -> f64 {
        self.0.iter().find(|(known, _)| *known == name).map_or(0.0, |(_, used)| *used)
    }

    /// All together.
    pub fn total(&self) -> f64 {
        self.0.iter().map(|(_, used)| used).sum()
    }
}

/// CPU seconds that the whole machine has been busy.
#[derive(Clone, Copy, Debug)]
pub struct Machine(f64);

impl Machine {
    /// So far.
    pub fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let fields: Vec<f64> = stat
            .lines()
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .skip(1)
            .filter_map(|field| field.parse().ok())
            .collect();
        // user nice system idle iowait irq softirq steal; what idles is not busy.
        let busy = fields.iter().take(8).sum::<f64>() - fields.iter().skip(3).take(2).sum::<f64>();
        Self(busy / TICKS)
    }

    /// Since `before`.
    pub fn since(self, before: Self) -> f64 {
        self.0 - before.0
    }
}

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
