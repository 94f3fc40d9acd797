//! Objects out of the API server's JSON, one by one: what cannot be read concerns only itself.
//!
//! ```text
//!   page of a list ─┬─ read as a whole ──────────────────────────▶ items
//!                   └─ one object cannot be read: cut apart, each ▶ items, some of them unread
//!   line of a watch ──────────────────────────────────────────────▶ what it says
//! ```
//!
//! Reading is the dearest thing in a large cluster, so nothing is read twice unless it could not be read. Cutting
//! apart skips values without going into them: no depth of nesting stops it.

use kube::{Resource, ResourceExt};
use muster_model::{ObjectKey, Uid};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

/// Longest text of an error, in bytes: it may quote what a user wrote.
const ERROR_LIMIT: usize = 300;

/// Which object, in which version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Namespace and name.
    pub key: ObjectKey,
    /// UID.
    pub uid: Uid,
    /// resourceVersion.
    pub version: String,
}

impl Identity {
    fn of<K: Resource>(object: &K) -> Self {
        Self {
            key: ObjectKey::new(object.namespace().unwrap_or_default(), object.name_any()),
            uid: Uid(object.uid().unwrap_or_default()),
            version: object.resource_version().unwrap_or_default(),
        }
    }
}

/// An object as far as it could be read.
#[derive(Debug)]
pub enum Content<K> {
    /// The whole object.
    Read(K),
    /// What keeps it from being read: the path of the field, if it is known, and what is wrong with it.
    Unread(String),
}

/// A page of a list.
#[derive(Debug)]
pub struct Page<K> {
    /// resourceVersion of the list.
    pub version: String,
    /// What to ask for the next page with; `None` on the last.
    pub next: Option<String>,
    /// The objects.
    pub items: Vec<(Identity, Content<K>)>,
}

/// What a line of a watch says.
#[derive(Debug)]
pub enum Said<K> {
    /// An object is new or has changed.
    Set(Identity, Content<K>),
    /// An object is gone.
    Gone(Identity),
    /// Nothing happened up to this resourceVersion.
    Bookmark(String),
    /// The watch cannot go on.
    Fault {
        /// HTTP status code: 410 means that a new list is needed.
        code: u16,
        /// What the server says.
        message: String,
    },
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    next: String,
}

#[derive(Deserialize)]
struct Whole<K> {
    #[serde(default)]
    metadata: ListMeta,
    /// `null` where there is nothing.
    items: Option<Vec<K>>,
}

/// Reads a page of a list.
///
/// # Errors
/// When it is no list, or no JSON at all.
pub fn page<K>(text: &str) -> Result<Page<K>, String>
where
    K: Resource + DeserializeOwned,
{
    let (metadata, items) = if let Ok(whole) = serde_json::from_str::<Whole<K>>(text) {
        let read = |object: K| (Identity::of(&object), Content::Read(object));
        (whole.metadata, whole.items.into_iter().flatten().map(read).collect())
    } else {
        let metadata = member(text, "metadata")?.ok_or("the list has no metadata")?;
        let metadata = serde_json::from_str(metadata).map_err(|error| error.to_string())?;
        let texts = elements(member(text, "items")?.unwrap_or("[]"))?;
        (metadata, texts.into_iter().map(item).collect::<Result<_, _>>()?)
    };
    if metadata.resource_version.is_empty() {
        return Err("the list has no resourceVersion".into());
    }
    Ok(Page {
        version: metadata.resource_version,
        next: Some(metadata.next).filter(|token| !token.is_empty()),
        items,
    })
}

/// The resourceVersion of a list whose objects are of no interest.
///
/// # Errors
/// When it is no list, or has none.
pub fn version(text: &str) -> Result<String, String> {
    let metadata = member(text, "metadata")?.ok_or("the list has no metadata")?;
    let ListMeta { resource_version, .. } =
        serde_json::from_str(metadata).map_err(|error| error.to_string())?;
    if resource_version.is_empty() {
        Err("the list has no resourceVersion".into())
    } else {
        Ok(resource_version)
    }
}

#[derive(Deserialize)]
struct Line<K> {
    #[serde(rename = "type")]
    kind: String,
    object: K,
}

/// Reads a line of a watch.
///
/// # Errors
/// When it is not what a watch says, such as the half of a line.
pub fn line<K>(text: &str) -> Result<Said<K>, String>
where
    K: Resource + DeserializeOwned,
{
    if let Ok(Line { kind, object }) = serde_json::from_str::<Line<K>>(text) {
        match kind.as_str() {
            "ADDED" | "MODIFIED" => return Ok(Said::Set(Identity::of(&object), Content::Read(object))),
            "DELETED" => return Ok(Said::Gone(Identity::of(&object))),
            _ => {}
        }
    }
    let kind = member(text, "type")?.ok_or("a line of the watch has no type")?;
    let object = member(text, "object")?.ok_or("a line of the watch has no object")?;
    match kind.trim_matches('"') {
        "ADDED" | "MODIFIED" => item(object).map(|(identity, content)| Said::Set(identity, content)),
        "DELETED" => identity(object).map(Said::Gone),
        "BOOKMARK" => head(object).map(|head| Said::Bookmark(head.metadata.resource_version)),
        "ERROR" => {
            let status: Status = serde_json::from_str(object).map_err(|error| error.to_string())?;
            Ok(Said::Fault { code: status.code, message: bounded(&status.message) })
        }
        other => Err(bounded(&format!("a line of the watch has the type {other:?}"))),
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
    message: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Head {
    metadata: HeadMeta,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct HeadMeta {
    name: String,
    namespace: String,
    uid: String,
    resource_version: String,
}

fn head(object: &str) -> Result<Head, String> {
    serde_json::from_str(object).map_err(|error| bounded(&error.to_string()))
}

fn identity(object: &str) -> Result<Identity, String> {
    let HeadMeta { name, namespace, uid, resource_version } = head(object)?.metadata;
    Ok(Identity { key: ObjectKey::new(namespace, name), uid: Uid(uid), version: resource_version })
}

fn item<K>(object: &str) -> Result<(Identity, Content<K>), String>
where
    K: Resource + DeserializeOwned,
{
    let mut json = serde_json::Deserializer::from_str(object);
    match serde_path_to_error::deserialize::<_, K>(&mut json) {
        Ok(read) => Ok((Identity::of(&read), Content::Read(read))),
        Err(error) => Ok((identity(object)?, Content::Unread(words(&error)))),
    }
}

/// The field and what is wrong with it; where in the text it stands says nothing to anybody.
fn words(error: &serde_path_to_error::Error<serde_json::Error>) -> String {
    let (path, full) = (error.path().to_string(), error.inner().to_string());
    let message = full.rsplit_once(" at line ").map_or(full.as_str(), |(message, _)| message);
    bounded(&if path == "." { message.to_owned() } else { format!("{path}: {message}") })
}

/// A text in one line of bounded length.
pub(crate) fn bounded(text: &str) -> String {
    let mut end = text.len().min(ERROR_LIMIT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let cut = if end < text.len() { "…" } else { "" };
    text[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>() + cut
}

/// The JSON text of a member of an object.
fn member<'t>(text: &'t str, name: &str) -> Result<Option<&'t str>, String> {
    let mut rest = after(text, '{')?;
    while !rest.starts_with('}') {
        let (key, after_key) = value(rest)?;
        let (found, next) = value(after(after_key, ':')?)?;
        if key.trim_matches('"') == name {
            return Ok(Some(found));
        }
        rest = next.strip_prefix(',').map_or(next, str::trim_start);
    }
    Ok(None)
}

/// The JSON texts of the elements of an array; `null` has none.
fn elements(text: &str) -> Result<Vec<&str>, String> {
    if text == "null" {
        return Ok(Vec::new());
    }
    let mut rest = after(text, '[')?;
    let mut found = Vec::new();
    while !rest.starts_with(']') {
        let (element, next) = value(rest)?;
        found.push(element);
        rest = next.strip_prefix(',').map_or(next, str::trim_start);
    }
    Ok(found)
}

fn after(text: &str, mark: char) -> Result<&str, String> {
    let rest = text.trim_start().strip_prefix(mark);
    rest.map(str::trim_start).ok_or_else(|| format!("the server's JSON has no {mark:?} where one belongs"))
}

/// The value that a text begins with, and what follows it. Skipping does not recurse.
fn value(text: &str) -> Result<(&str, &str), String> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    match values.next() {
        Some(Ok(_)) => {
            let end = values.byte_offset();
            Ok((text[..end].trim(), text[end..].trim_start()))
        }
        Some(Err(error)) => Err(format!("the server's JSON cannot be read: {error}")),
        None => Err("the server's JSON ends too soon".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_api::{Gang, TrainingJob};
    use muster_cluster::seen::SeenPod;

    fn job(name: &str, framework: &str, port: u64) -> String {
        format!(
            r#"{{"apiVersion":"muster.dev/v1alpha1","kind":"TrainingJob",
            "metadata":{{"name":"{name}","namespace":"n","uid":"u-{name}","resourceVersion":"7"}},
            "spec":{{"framework":"{framework}","parallelism":{{"data":1}},"template":{{"spec":{{"containers":[
              {{"name":"t","livenessProbe":{{"httpGet":{{"port":{port}}}}}}}]}}}}}}}}"#
        )
    }

    fn list(items: &[String]) -> String {
        format!(
            r#"{{"kind":"List","metadata":{{"resourceVersion":"9","continue":"more"}},"items":[{}]}}"#,
            items.join(" , ")
        )
    }

    #[test]
    fn an_unreadable_object_leaves_the_others_of_its_page() {
        let items = [job("a", "Torchrun", 80), job("b", "Torchrun", 3_000_000_000), job("c", "Newest", 80)];
        let page = page::<TrainingJob>(&list(&items)).expect("a page");
        assert_eq!((page.version.as_str(), page.next.as_deref()), ("9", Some("more")));
        let [(_, Content::Read(_)), (b, Content::Unread(port)), (c, Content::Read(_))] = &page.items[..]
        else {
            panic!("{:?}", page.items)
        };
        assert_eq!((b.key.to_string(), b.uid.0.as_str(), b.version.as_str()), ("n/b".into(), "u-b", "7"));
        assert!(port.starts_with("spec.template.spec.containers[0].livenessProbe.httpGet.port: "), "{port}");
        assert!(port.contains("3000000000") && !port.contains("column"), "{port}");
        // A word that a newer version wrote is read: what cannot be done with it, the job's status says.
        assert_eq!(c.key.name, "c");
    }

    #[test]
    fn no_depth_of_nesting_hides_the_others() {
        let deep = format!("{}1{}", r#"{"a":"#.repeat(5_000), "}".repeat(5_000));
        let bad = format!(r#"{{"metadata":{{"name":"deep","managedFields":[{deep}]}},"spec":{deep}}}"#);
        let page = page::<TrainingJob>(&list(&[bad, job("a", "Plain", 1)])).expect("a page");
        assert!(matches!(&page.items[..], [(deep, Content::Unread(_)), (_, Content::Read(_))]
            if deep.key.name == "deep"));
    }

    #[test]
    fn empty_lists_have_no_items() {
        for items in ["[]", "null"] {
            let text = format!(r#"{{"metadata":{{"resourceVersion":"3"}},"items":{items}}}"#);
            let page = page::<SeenPod>(&text).expect("a page");
            assert!(page.items.is_empty() && page.next.is_none());
        }
    }

    #[test]
    fn what_is_no_list_is_an_error() {
        for text in ["", "{", "[]", r#"{"metadata":{},"items":[{"#, r#"{"metadata":{},"items":[]}"#, "<html>"]
        {
            assert!(page::<SeenPod>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn lines_of_a_watch_say_what_they_say() {
        let of = |kind: &str, object: &str| format!(r#"{{"type":"{kind}","object":{object}}}"#);
        let good = job("a", "Torchrun", 80);
        let bad = job("b", "Torchrun", 3_000_000_000);
        let read = |kind: &str, object: &str| line::<TrainingJob>(&of(kind, object)).expect("a line");
        assert!(matches!(read("ADDED", &good), Said::Set(_, Content::Read(_))));
        assert!(matches!(read("MODIFIED", &bad), Said::Set(b, Content::Unread(_)) if b.key.name == "b"));
        assert!(matches!(read("DELETED", &good), Said::Gone(a) if a.uid.0 == "u-a"));
        assert!(matches!(read("DELETED", &bad), Said::Gone(b) if b.uid.0 == "u-b"));
        let mark = r#"{"kind":"TrainingJob","metadata":{"resourceVersion":"12","creationTimestamp":null}}"#;
        assert!(matches!(read("BOOKMARK", mark), Said::Bookmark(version) if version == "12"));
        let status = r#"{"kind":"Status","code":410,"message":"too old"}"#;
        assert!(matches!(read("ERROR", status), Said::Fault { code: 410, .. }));
        // A pod can be read out of almost anything: the type of the line comes first.
        let pod = line::<SeenPod>(&of("ERROR", status)).expect("a line");
        assert!(matches!(pod, Said::Fault { code: 410, .. }));
        assert!(line::<Gang>(&good[..40]).is_err());
        assert!(line::<Gang>(&of("SHOUTED", &good)).is_err());
    }

    #[test]
    fn errors_are_bounded_and_of_one_line() {
        let long = "ü".repeat(1_000) + "\n";
        assert!(bounded(&long).len() <= ERROR_LIMIT + "…".len());
        assert_eq!(bounded("a\nb"), "a b");
    }
}
