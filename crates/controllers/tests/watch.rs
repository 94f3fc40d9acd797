//! Watches against a server made by hand: what it answers, and when, is the test.
//!
//! ```text
//!   script: answers in their order ──▶ kube::Client ──▶ changes ──▶ "set a", "gone b", …
//! ```

use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use kube::client::Body;
use kube::{Api, Client, ResourceExt};
use muster_api::Queue;
use muster_controllers::Pulse;
use muster_controllers::watch::{Rewound, Select, changes};
use muster_core::Change;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, timeout};

const SECOND: Duration = Duration::from_secs(1);

/// One answer.
enum Answer {
    /// A page of a list: its version, how it goes on, and its objects.
    Page(u64, &'static str, Vec<String>),
    /// The lines of a watch; then it ends.
    Lines(Vec<String>),
    /// The lines of a watch; then it is silent.
    Silent(Vec<String>),
    /// A status code.
    Code(u16),
    /// None.
    Never,
}

/// A server that answers by a script, and then never again.
#[derive(Clone)]
struct Server {
    script: Arc<Mutex<VecDeque<Answer>>>,
    /// The queries that came, and when.
    asked: Arc<Mutex<Vec<(String, Instant)>>>,
}

impl Server {
    fn new(script: Vec<Answer>) -> Self {
        Self { script: Arc::new(Mutex::new(script.into())), asked: Arc::default() }
    }

    fn client(&self) -> Client {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let this = this.clone();
            async move {
                let query = request.uri().query().unwrap_or_default().to_owned();
                this.asked.lock().unwrap().push((query, Instant::now()));
                let answer = this.script.lock().unwrap().pop_front();
                match answer {
                    Some(answer) => respond(answer).await,
                    None => respond(Answer::Never).await,
                }
            }
        });
        Client::new(service, "default")
    }

    /// Queries, shortened to what tells them apart.
    fn asked(&self) -> Vec<String> {
        let brief = |query: &str| {
            let value = |name: &str| {
                let pair = query.split('&').find(|pair| pair.starts_with(&format!("{name}=")));
                pair.map(|pair| pair[name.len() + 1..].to_owned())
            };
            match (query.contains("watch=true"), value("continue"), value("limit")) {
                (true, ..) => format!("watch {}", value("resourceVersion").unwrap_or_default()),
                (_, Some(token), _) => format!("list {token}"),
                (_, _, Some(limit)) if limit == "1" => "ask".to_owned(),
                _ => "list".to_owned(),
            }
        };
        self.asked.lock().unwrap().iter().map(|(query, _)| brief(query)).collect()
    }
}

type Answered = Result<Response<UnsyncBoxBody<Bytes, Infallible>>, Infallible>;

async fn respond(answer: Answer) -> Answered {
    let whole = |code: u16, text: String| {
        let body = Full::new(Bytes::from(text)).boxed_unsync();
        Ok(Response::builder().status(code).body(body).unwrap())
    };
    let lines = |lines: Vec<String>, ends: bool| {
        let said = lines.into_iter().map(|line| Ok(Frame::data(Bytes::from(line + "\n"))));
        let said = futures::stream::iter(said);
        let rest: Pin<Box<dyn Stream<Item = _> + Send>> =
            if ends { Box::pin(futures::stream::empty()) } else { Box::pin(futures::stream::pending()) };
        Ok(Response::new(StreamBody::new(said.chain(rest)).boxed_unsync()))
    };
    match answer {
        Answer::Page(version, next, items) => whole(
            200,
            format!(
                r#"{{"metadata":{{"resourceVersion":"{version}","continue":"{next}"}},"items":[{}]}}"#,
                items.join(",")
            ),
        ),
        Answer::Lines(all) => lines(all, true),
        Answer::Silent(all) => lines(all, false),
        Answer::Code(code) => whole(
            code,
            format!(
                r#"{{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","reason":"No","code":{code}}}"#
            ),
        ),
        Answer::Never => std::future::pending().await,
    }
}

/// A queue; `weight` is its only field that a type can fail to read.
fn queue(name: &str, uid: &str, version: u64, weight: &str) -> String {
    format!(
        r#"{{"apiVersion":"muster.dev/v1alpha1","kind":"Queue",
        "metadata":{{"name":"{name}","uid":"{uid}","resourceVersion":"{version}"}},"spec":{{"weight":{weight}}}}}"#
    )
    .replace('\n', " ")
}

fn ok(name: &str, version: u64) -> String {
    queue(name, &format!("u-{name}"), version, "1")
}

/// Its weight is no number of ours.
fn bad(name: &str, version: u64) -> String {
    queue(name, &format!("u-{name}"), version, "\"heavy\"")
}

fn line(kind: &str, object: &str) -> String {
    format!(r#"{{"type":"{kind}","object":{object}}}"#)
}

fn mark(version: u64) -> String {
    line("BOOKMARK", &format!(r#"{{"metadata":{{"resourceVersion":"{version}"}}}}"#))
}

fn expired() -> String {
    line("ERROR", r#"{"kind":"Status","code":410,"message":"too old resource version"}"#)
}

/// What a stream says, in words.
fn told(change: &Change<Queue>) -> String {
    match change {
        Change::Set(queue) => format!("set {}", queue.name_any()),
        Change::Gone(key, uid) => format!("gone {} {uid:?}", key.name),
        Change::Unreadable { key, error, .. } => format!("unreadable {} {error}", key.name),
        Change::Relisted { version } => format!("relisted {version}"),
        Change::Synced => "synced".into(),
    }
    .replace("Uid(\"", "")
    .replace("\")", "")
}

type Told = Pin<Box<dyn Stream<Item = Result<Change<Queue>, Rewound>> + Send>>;

fn follow(server: &Server, pulse: &Pulse) -> Told {
    pulse.begin();
    Box::pin(changes(Api::<Queue>::all(server.client()), Select::default(), pulse.watch("queues")))
}

/// All that is said within a time; what ended the stream comes last.
async fn within(stream: &mut Told, time: Duration) -> Vec<String> {
    let until = Instant::now() + time;
    let mut all = Vec::new();
    while let Ok(next) = timeout(until - Instant::now(), stream.next()).await {
        match next {
            Some(Ok(change)) => all.push(told(&change)),
            Some(Err(rewound)) => all.push(rewound.to_string()),
            None => {
                all.push("end".into());
                break;
            }
        }
    }
    all
}

#[tokio::test(start_paused = true)]
async fn pages_end_with_their_version_and_the_watch_goes_on_from_there() {
    let server = Server::new(vec![
        Answer::Page(7, "more", vec![ok("a", 3)]),
        Answer::Page(7, "", vec![ok("b", 5)]),
        Answer::Lines(vec![line("ADDED", &ok("c", 8)), mark(12)]),
        Answer::Silent(vec![line("DELETED", &ok("a", 13))]),
    ]);
    let (pulse, mut all) = (Pulse::default(), Vec::new());
    all.extend(within(&mut follow(&server, &pulse), 5 * SECOND).await);
    assert_eq!(all, ["set a", "set b", "relisted 7", "synced", "set c", "gone a u-a"]);
    assert_eq!(server.asked(), ["list", "list more", "watch 7", "watch 12"]);
}

/// One object that the types cannot read stops neither list nor watch; it is set again when it can be read.
#[tokio::test(start_paused = true)]
async fn an_unreadable_object_concerns_only_itself() {
    let server = Server::new(vec![
        Answer::Page(7, "", vec![ok("a", 3), bad("b", 4), bad("c", 5), ok("d", 6)]),
        Answer::Silent(vec![
            line("MODIFIED", &bad("a", 8)),
            line("MODIFIED", &ok("b", 9)),
            line("DELETED", &bad("c", 10)),
            line("ADDED", &ok("e", 11)),
        ]),
    ]);
    let pulse = Pulse::default();
    let all = within(&mut follow(&server, &pulse), 5 * SECOND).await;
    let no = "spec.weight: invalid type: string \"heavy\", expected ";
    let (read, unread): (Vec<&String>, Vec<&String>) = all.iter().partition(|t| !t.starts_with("unreadable"));
    assert_eq!(read, ["set a", "set d", "relisted 7", "synced", "set b", "gone c u-c", "set e"]);
    for (name, told) in ["b", "c", "a"].iter().zip(&unread) {
        assert!(told.starts_with(&format!("unreadable {name} {no}")), "{told}");
    }
    assert_eq!((unread.len(), pulse.views()[0].unreadable), (3, 1));
}

/// 410 in the midst of a term: what went in the gap is gone, and what was made anew under its name is another.
#[tokio::test(start_paused = true)]
async fn a_relist_reports_what_went_before_it_says_that_it_ended() {
    let server = Server::new(vec![
        Answer::Page(7, "", vec![ok("a", 3), ok("b", 4), bad("c", 5), ok("d", 6)]),
        Answer::Silent(vec![expired()]),
        Answer::Page(20, "", vec![queue("a", "other", 15, "1"), ok("d", 6)]),
        Answer::Code(410),
        Answer::Page(30, "", vec![ok("d", 6)]),
    ]);
    let pulse = Pulse::default();
    let mut stream = follow(&server, &pulse);
    assert_eq!(within(&mut stream, SECOND / 2).await.last().map(String::as_str), Some("relisted 20"));
    let all = within(&mut stream, 5 * SECOND).await;
    assert_eq!(all, ["set d", "gone a other", "relisted 30"]);
    assert_eq!(pulse.views()[0].unreadable, 0);
    // The same again, from the start.
    let server = Server::new(vec![
        Answer::Page(7, "", vec![ok("a", 3), ok("b", 4), bad("c", 5)]),
        Answer::Silent(vec![expired()]),
        Answer::Page(20, "", vec![queue("a", "other", 15, "1")]),
    ]);
    let all = within(&mut follow(&server, &pulse), 5 * SECOND).await;
    let after: Vec<&String> = all.iter().skip_while(|told| *told != "synced").collect();
    assert_eq!(after, ["synced", "gone a u-a", "set a", "gone b u-b", "gone c u-c", "relisted 20"]);
}

/// A list that becomes too old between its pages begins again; only a whole one says what is gone.
#[tokio::test(start_paused = true)]
async fn a_list_that_begins_again_takes_nothing_for_gone() {
    let server = Server::new(vec![
        Answer::Page(7, "", vec![ok("a", 3), ok("b", 4)]),
        Answer::Silent(vec![expired()]),
        Answer::Page(20, "more", vec![ok("a", 3)]),
        Answer::Code(500),
        Answer::Code(410),
        Answer::Page(25, "last", vec![ok("a", 3)]),
        Answer::Page(25, "", vec![ok("b", 4)]),
    ]);
    let pulse = Pulse::default();
    let all = within(&mut follow(&server, &pulse), 10 * SECOND).await;
    assert!(!all.iter().any(|told| told.starts_with("gone")), "{all:?}");
    assert_eq!(all.last().map(String::as_str), Some("relisted 25"));
    let lists = ["list", "list more", "list more", "list", "list last"];
    assert_eq!(server.asked()[2..7], lists);
}

/// A list without an answer is asked for again, and the process says which kind it waits for.
#[tokio::test(start_paused = true)]
async fn a_list_that_is_never_answered_does_not_hang() {
    let server = Server::new(vec![Answer::Never, Answer::Never]);
    let pulse = Pulse::default();
    let mut stream = follow(&server, &pulse);
    within(&mut stream, 44 * SECOND).await;
    pulse.turn();
    assert_eq!(pulse.alive(), Ok(()));
    within(&mut stream, 2 * SECOND).await;
    pulse.turn();
    let why = pulse.alive().expect_err("nothing was heard");
    assert!(why.contains("queues, listed for 46s") && why.contains("no answer within 20s"), "{why}");
    assert_eq!(server.asked(), ["list", "list", "list"]);
}

/// A server without bookmarks: a silent watch is asked about and opened again, and is alive all the time.
#[tokio::test(start_paused = true)]
async fn a_silent_watch_is_asked_about() {
    let mut script = vec![Answer::Page(7, "", vec![ok("a", 3)])];
    for _ in 0..20 {
        script.extend([Answer::Silent(vec![]), Answer::Page(9, "", vec![])]);
    }
    script.push(Answer::Silent(vec![line("ADDED", &ok("b", 10))]));
    let server = Server::new(script);
    let pulse = Pulse::default();
    let mut stream = follow(&server, &pulse);
    let mut all = Vec::new();
    for _ in 0..31 {
        all.extend(within(&mut stream, 60 * SECOND).await);
        pulse.turn();
        assert_eq!(pulse.alive(), Ok(()));
    }
    assert_eq!(all, ["set a", "relisted 7", "synced", "set b"]);
    assert_eq!(server.asked()[..4], ["list", "watch 7", "ask", "watch 7"]);
}

/// The connection died under an open watch: what comes after it is never seen, and that is noticed.
#[tokio::test(start_paused = true)]
async fn a_watch_on_a_dead_connection_is_not_believed() {
    let server = Server::new(vec![
        Answer::Page(7, "", vec![]),
        Answer::Silent(vec![]),
        Answer::Never,
        Answer::Code(503),
        Answer::Never,
        Answer::Never,
    ]);
    let pulse = Pulse::default();
    let mut stream = follow(&server, &pulse);
    within(&mut stream, 149 * SECOND).await;
    pulse.turn();
    assert_eq!(pulse.alive(), Ok(()));
    within(&mut stream, 2 * SECOND).await;
    pulse.turn();
    let why = pulse.alive().expect_err("nothing was heard");
    assert!(why.contains("queues, nothing heard for 151s") && why.contains("the watch is silent"), "{why}");
}

/// etcd was restored from a backup: the server is behind what was seen of it, and would be silent until it has
/// counted up to there.
#[tokio::test(start_paused = true)]
async fn data_that_went_back_in_time_ends_the_stream() {
    let restored = "queues: the API server is at resourceVersion 512 after 90210 was seen: its data was restored from \
                    a backup";
    let silent = vec![
        Answer::Page(70_000, "", vec![]),
        Answer::Silent(vec![mark(90_210)]),
        Answer::Page(512, "", vec![]),
    ];
    let relisted = vec![
        Answer::Page(90_210, "", vec![ok("a", 3)]),
        Answer::Silent(vec![expired()]),
        Answer::Page(512, "", vec![]),
    ];
    for script in [silent, relisted] {
        let all = within(&mut follow(&Server::new(script), &Pulse::default()), 100 * SECOND).await;
        assert_eq!(all[all.len() - 2..], [restored, "end"]);
        // Nothing is reported gone by a list that shows another time.
        assert!(!all.iter().any(|told| told.starts_with("gone")), "{all:?}");
    }
}

/// Failures are tried again with growing delays, also a watch that ends as soon as it is open.
#[tokio::test(start_paused = true)]
async fn failures_are_not_repeated_in_a_hot_loop() {
    let mut script: Vec<Answer> = (0..5).map(|_| Answer::Code(403)).collect();
    script.push(Answer::Page(7, "", vec![]));
    script.extend((0..100).map(|_| Answer::Lines(vec![])));
    let server = Server::new(script);
    let pulse = Pulse::default();
    within(&mut follow(&server, &pulse), 60 * SECOND).await;
    let asked = server.asked();
    assert_eq!(asked[..6], ["list"; 6]);
    assert!(asked.len() < 60, "{} requests in a minute", asked.len());
}
