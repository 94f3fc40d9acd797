//! What breaks between the operators and the server, and for how long.

use http::Method;

use super::rng::{Rng, mix};
use super::trace::Break;

/// What becomes of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fate {
    /// How it breaks; `None` when it does not.
    pub how: Option<Break>,
    /// Milliseconds that a delay lasts.
    pub delay: u64,
    /// Milliseconds that it takes in fine weather: connections overtake each other by them.
    pub latency: u64,
}

/// A spell of one kind of fault.
#[derive(Clone, Copy, Debug)]
struct Spell {
    how: Break,
    permille: u16,
    until: i64,
    salt: u64,
}

/// All that breaks.
#[derive(Debug)]
pub struct Weather {
    spells: Vec<Spell>,
    lag: Option<(u16, i64)>,
    gap_until: i64,
    seed: u64,
    requests: u64,
}

/// A request in fine weather takes at most this long.
const LATENCY: u64 = 4;
/// Requests wait at most this long to be done.
const LATEST: u64 = 8_000;
/// Answers wait at most this long.
const SLOWEST: u64 = 12_000;

impl Weather {
    /// Fine weather.
    pub fn new(seed: u64) -> Self {
        Self { spells: Vec::new(), lag: None, gap_until: 0, seed, requests: 0 }
    }

    /// Requests break from now on.
    pub fn strike(&mut self, how: Break, permille: u16, until: i64) {
        let salt = mix(self.seed ^ mix(self.spells.len() as u64 + 1));
        self.spells.push(Spell { how, permille, until, salt });
    }

    /// Watches lag until then.
    pub fn lag(&mut self, millis: u16, until: i64) {
        self.lag = Some((millis, until));
    }

    /// Nothing gets through until then.
    pub fn gap(&mut self, until: i64) {
        self.gap_until = self.gap_until.max(until);
    }

    /// All is well from now on.
    pub fn calm(&mut self) {
        self.spells.clear();
        self.lag = None;
        self.gap_until = 0;
    }

    /// What becomes of the next request.
    pub fn fate(&mut self, now: i64, method: &Method, stream: bool) -> Fate {
        self.requests += 1;
        let latency = Rng::new(self.seed ^ self.requests).between(1, LATENCY);
        if now < self.gap_until {
            return Fate { how: Some(Break::Unreachable), delay: 0, latency };
        }
        self.spells.retain(|spell| now < spell.until);
        for spell in &self.spells {
            let mut rng = Rng::new(spell.salt ^ self.requests);
            // A list or watch that is never answered is another matter: see the page of what storms leave out.
            let fits = match spell.how {
                Break::Late => method != Method::GET,
                // A deletion conflicts with nothing but its precondition.
                Break::Conflict => method != Method::GET && method != Method::DELETE,
                Break::Silent => !stream,
                _ => true,
            };
            if fits && rng.chance(u64::from(spell.permille)) {
                let most = if spell.how == Break::Late { LATEST } else { SLOWEST };
                return Fate { how: Some(spell.how), delay: rng.between(1, most), latency };
            }
        }
        Fate { how: None, delay: 0, latency }
    }

    /// By how much a watch of this kind lags now.
    pub fn lag_of(&self, now: i64, kind: &str) -> u64 {
        match self.lag {
            Some((millis, until)) if now < until => {
                let share = mix(kind.bytes().fold(self.seed, |hash, byte| mix(hash ^ u64::from(byte)))) % 5;
                u64::from(millis) * share / 4
            }
            _ => 0,
        }
    }
}
