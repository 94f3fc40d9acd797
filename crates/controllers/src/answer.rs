//! What an answer of the API server means to the one who asked.
//!
//! ```text
//!   status code + Status ──judge──▶ Answer ── Denied ──▶ the Lease is read: only it says that a term is over
//! ```
//!
//! Texts are never searched for words: an API server quotes names and values that tenants chose. A denial by the fence is
//! known by the cause that the server itself writes, and even so it is a hint: a server that is behind denies as well.

use http::StatusCode;
use kube::core::Status;

/// Name of the ValidatingAdmissionPolicy that fences former leaders off.
pub const FENCE_POLICY: &str = "muster-fence";

/// Longest message that is kept, in bytes: it ends up in conditions and logs, and tenants choose parts of it.
const LONGEST: usize = 2_048;

/// What an error answer means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The object, or the namespace that it should be in, does not exist.
    Gone,
    /// An object of this name exists already.
    Taken,
    /// It was changed meanwhile, or is another one than was meant.
    Conflict,
    /// Trouble that passes: to be tried again.
    Transient(String),
    /// Refused for good, in the server's words.
    Refused(String),
    /// Denied by the fence, if the answer is what it looks like: to be confirmed by the Lease.
    Denied(Denial),
}

/// A denial by the fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The binding of the policy that it came through.
    pub binding: String,
    /// The server's words.
    pub message: String,
}

/// What an error answer with this code and body means.
pub fn judge(code: StatusCode, body: &[u8]) -> Answer {
    let mut status: Status = serde_json::from_slice(body).unwrap_or_default();
    // The code of the answer counts, whatever the body claims.
    status.code = code.as_u16();
    if status.message.is_empty() {
        status.message = format!("{code}: {}", truncated(&String::from_utf8_lossy(body), 200));
    }
    of(&status)
}

/// What the Status of an error answer means.
pub fn of(status: &Status) -> Answer {
    if let Some(denial) = denial(status) {
        return Answer::Denied(denial);
    }
    let message = truncated(&status.message, LONGEST).to_owned();
    match status.code {
        404 => Answer::Gone,
        409 if status.reason == "AlreadyExists" => Answer::Taken,
        // Not the object is in conflict but a quota that others use at the same time.
        409 if status.details.as_ref().is_some_and(|details| details.kind == "resourcequotas") => {
            Answer::Transient(message)
        }
        409 => Answer::Conflict,
        // Unauthorized: a token that is just being renewed.
        401 | 408 | 429 | 500.. => Answer::Transient(message),
        _ => Answer::Refused(message),
    }
}

/// The denial by the fence that a Status is, if it is one: code, reason, and as the only cause the very words that the
/// server puts behind "is forbidden: ". Nothing that a tenant writes comes to stand at the beginning of a cause.
pub fn denial(status: &Status) -> Option<Denial> {
    // A denial without a reason of its own, such as one for want of a Lease, is "Invalid".
    if !matches!((status.code, status.reason.as_str()), (403, "Forbidden") | (422, "Invalid")) {
        return None;
    }
    let [cause] = status.details.as_ref()?.causes.as_slice() else { return None };
    let rest = cause.message.strip_prefix("ValidatingAdmissionPolicy '")?;
    let rest = rest.strip_prefix(FENCE_POLICY)?.strip_prefix("' with binding '")?;
    let (binding, _) = rest.split_once("' denied request: ")?;
    let before = status.message.strip_suffix(&cause.message)?;
    (cause.reason.is_empty() && cause.field.is_empty() && before.ends_with(" is forbidden: ")).then(|| {
        Denial { binding: binding.to_owned(), message: truncated(&status.message, LONGEST).to_owned() }
    })
}

/// At most `limit` bytes of a text, cut at a character.
pub(crate) fn truncated(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn answer(code: u16, reason: &str, message: &str, details: &Value) -> Answer {
        let body = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "details": details, "code": code,
        });
        judge(StatusCode::from_u16(code).expect("a code"), body.to_string().as_bytes())
    }

    fn refused(message: &str) -> Answer {
        Answer::Refused(message.to_owned())
    }

    const DENIED: &str = "ValidatingAdmissionPolicy 'muster-fence' with binding 'muster-fence' denied request: \
                          written under epoch 4, but the Lease muster is at epoch 5: only the leader of that epoch may write";
    const NO_LEASE: &str = "ValidatingAdmissionPolicy 'muster-fence' with binding 'muster-fence-plans' denied request: \
                            failed to configure binding: no params found for policy binding with `Deny` \
                            parameterNotFoundAction";

    #[test]
    fn denials_by_the_fence_are_known_by_their_structure() {
        for (code, reason, cause, binding) in
            [(403, "Forbidden", DENIED, "muster-fence"), (422, "Invalid", NO_LEASE, "muster-fence-plans")]
        {
            let message = format!("pods \"train-1\" is forbidden: {cause}");
            let details = json!({ "name": "train-1", "kind": "pods", "causes": [{ "message": cause }] });
            let denial = Denial { binding: binding.into(), message: message.clone() };
            assert_eq!(answer(code, reason, &message, &details), Answer::Denied(denial));
        }
    }

    /// Real messages of kube-apiserver, its admission plugins and webhooks that quote what a tenant chose.
    #[test]
    fn an_answer_that_quotes_the_fence_is_no_denial_by_it() {
        let quota = "pods \"muster-fence-x1-0\" is forbidden: exceeded quota: few, requested: pods=1, used: pods=3, limited: pods=3";
        let account = "pods \"a\" is forbidden: error looking up service account research/muster-fence: \
                       serviceaccount \"muster-fence\" not found";
        let label = "Pod \"a\" is invalid: metadata.labels: Invalid value: \"muster-fence!\": a valid label must consist of \
                     alphanumeric characters";
        let cause = "Invalid value: \"muster-fence!\": a valid label must consist of alphanumeric characters";
        let kyverno = "admission webhook \"validate.kyverno.svc-fail\" denied the request: resource \
                       Pod/muster-system/muster-fence-probe was blocked due to the following policies";
        let security = "pods \"muster-fence\" is forbidden: violates PodSecurity \"restricted:latest\": hostNetwork=true";
        let forged = format!("pods \"a\" is forbidden: exceeded quota: is forbidden: {DENIED}");
        let other = "ValidatingAdmissionPolicy 'house' with binding 'house' denied request: no ' with binding \
                     'muster-fence' denied request: here";
        let longer = "ValidatingAdmissionPolicy 'muster-fence-of-others' with binding 'b' denied request: no";
        for (code, reason, message, details) in [
            (403, "Forbidden", quota, json!({ "name": "muster-fence-x1-0", "kind": "pods" })),
            (403, "Forbidden", account, json!({ "name": "a", "kind": "pods" })),
            (
                422,
                "Invalid",
                label,
                json!({ "kind": "Pod", "causes": [{ "reason": "FieldValueInvalid", "message": cause, "field": "metadata.labels" }] }),
            ),
            (400, "", kyverno, json!({})),
            (403, "Forbidden", kyverno, json!({ "causes": [{ "message": DENIED }] })),
            (403, "Forbidden", security, json!({ "name": "muster-fence", "kind": "pods" })),
            (403, "Forbidden", forged.as_str(), json!({ "name": "a", "kind": "pods" })),
            (
                403,
                "Forbidden",
                &format!("pods \"a\" is forbidden: {other}"),
                json!({ "causes": [{ "message": other }] }),
            ),
            (
                403,
                "Forbidden",
                &format!("pods \"a\" is forbidden: {longer}"),
                json!({ "causes": [{ "message": longer }] }),
            ),
            // A cause that names a field comes from the checks of the object itself.
            (
                422,
                "Invalid",
                &format!("pods \"a\" is forbidden: {DENIED}"),
                json!({ "causes": [{ "message": DENIED, "field": "spec" }] }),
            ),
        ] {
            assert_eq!(answer(code, reason, message, &details), refused(message), "{message}");
        }
    }

    #[test]
    fn every_other_answer_means_what_its_code_says() {
        let fence = "\"muster-fence\"";
        let none = json!({});
        for (code, reason, message, details, expected) in [
            (404, "NotFound", "pods \"muster-fence\" not found", none.clone(), Answer::Gone),
            (409, "AlreadyExists", "pods \"muster-fence\" already exists", none.clone(), Answer::Taken),
            (409, "Conflict", "the object has been modified", none.clone(), Answer::Conflict),
            (
                409,
                "Conflict",
                "Operation cannot be fulfilled on resourcequotas \"few\": the object has been modified",
                json!({ "name": "few", "kind": "resourcequotas" }),
                Answer::Transient(
                    "Operation cannot be fulfilled on resourcequotas \"few\": the object has been modified"
                        .into(),
                ),
            ),
            (429, "TooManyRequests", fence, none.clone(), Answer::Transient(fence.into())),
            (401, "Unauthorized", fence, none.clone(), Answer::Transient(fence.into())),
            (500, "InternalError", DENIED, none.clone(), Answer::Transient(DENIED.into())),
            (400, "BadRequest", fence, none, refused(fence)),
        ] {
            assert_eq!(answer(code, reason, message, &details), expected, "{message}");
        }
    }

    #[test]
    fn an_answer_that_is_no_status_is_judged_by_its_code() {
        let judged = |code, body: &str| judge(code, body.as_bytes());
        assert_eq!(
            judged(StatusCode::BAD_GATEWAY, "<html>"),
            Answer::Transient("502 Bad Gateway: <html>".into())
        );
        assert_eq!(judged(StatusCode::FORBIDDEN, "muster-fence"), refused("403 Forbidden: muster-fence"));
        // The code of the answer counts, not the one in its body.
        let lies = json!({ "code": 409, "reason": "Conflict", "message": "m" }).to_string();
        assert_eq!(judged(StatusCode::SERVICE_UNAVAILABLE, &lies), Answer::Transient("m".into()));
    }

    #[test]
    fn messages_are_bounded_and_cut_at_a_character() {
        let long = "é".repeat(4_000);
        let Answer::Refused(message) = answer(403, "Forbidden", &long, &json!({})) else {
            panic!("a refusal");
        };
        assert_eq!(message.len(), LONGEST);
    }
}
