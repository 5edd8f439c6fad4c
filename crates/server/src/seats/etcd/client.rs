//! Calls of etcd's JSON gateway (`/v3/...`), each with a time limit. If one endpoint fails, the
//! next is tried.

use crate::config::EtcdOptions;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};
use tidegate_net::read_private;
use ureq::Agent;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

/// The longest answer, in bytes. No call asks for more keys than fit into it easily.
const ANSWER_BYTES_MAX: u64 = 4 << 20;
/// The gRPC code for a caller that has not authenticated.
const UNAUTHENTICATED: u64 = 16;
/// The gRPC codes of errors that another member may not have: cancelled, unknown (which a stopping
/// member reports), deadline exceeded, internal, unavailable, data loss.
const ELSEWHERE: [u64; 6] = [1, 2, 4, 13, 14, 15];
/// What etcd reports for a token that is older than the last change of its users and roles.
const OLD_TOKEN: &str = "revision of auth store is old";

/// Why a call of etcd failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdError {
    /// No endpoint answered as etcd does.
    #[error("etcd does not answer: {0}; see that it runs, and [ownership.etcd]")]
    Silent(String),
    /// etcd refused the call.
    #[error("etcd at {endpoint} refuses: {message}{}", advice(*code))]
    Refused {
        /// The endpoint that refused.
        endpoint: String,
        /// The gRPC code.
        code: u64,
        /// etcd's message.
        message: String,
    },
    /// A file that the configuration names cannot be used.
    #[error("{key} in [ownership.etcd]: {what}")]
    File {
        /// The configuration key that names the file.
        key: &'static str,
        /// The file, what is wrong, and what to do.
        what: String,
    },
}

impl EtcdError {
    /// Whether etcd does not know the lease that the call named.
    pub(super) fn is_no_lease(&self) -> bool {
        matches!(self, EtcdError::Refused { message, .. } if message.contains("lease not found"))
    }
}

/// What to do about a refusal.
fn advice(code: u64) -> &'static str {
    match code {
        3 | UNAUTHENTICATED => "; see user and password_file in [ownership.etcd]",
        7 => "; grant the user's role read and write below prefix of [ownership.etcd]",
        _ => "",
    }
}

/// An etcd cluster.
pub(super) struct Etcd {
    agent: Agent,
    endpoints: Vec<String>,
    /// The endpoint that is tried first: the last one that answered.
    next: usize,
    login: Option<(String, String)>,
    token: Option<String>,
    /// The cluster to which all endpoints must belong, and a key to identify it by.
    cluster: Option<(String, String)>,
    /// Whether the endpoint that is tried first is known to belong to the cluster.
    known: bool,
    attempt: Duration,
    whole: Duration,
}

impl Etcd {
    /// Makes no call yet. A call takes at most a fifth of `ttl`, the time to live of leases, so
    /// that a holder tries several times before its lease expires. If there are several endpoints,
    /// a try at one takes at most half of that. Fails if a file cannot be used.
    pub(super) fn new(options: &EtcdOptions, ttl: Duration) -> Result<Etcd, EtcdError> {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .tls_config(tls(options)?)
            .build();
        let login = match (&options.user, &options.password_file) {
            (Some(user), Some(path)) => {
                let password = read_private(path).map_err(|e| file("password_file", path, &e))?;
                Some((
                    user.clone(),
                    String::from_utf8_lossy(&password).into_owned(),
                ))
            }
            _ => None,
        };
        Ok(Etcd {
            agent: config.new_agent(),
            endpoints: options.endpoints.clone(),
            next: 0,
            login,
            token: None,
            cluster: None,
            known: false,
            attempt: ttl / 5 / options.endpoints.len().clamp(1, 2) as u32,
            whole: ttl / 5,
        })
    }

    /// Uses only endpoints of this cluster, given by etcd's number, from now on. `key` is the key
    /// by which they are identified.
    pub(super) fn stay_with(&mut self, cluster: &str, key: &str) {
        self.cluster = Some((cluster.to_owned(), key.to_owned()));
        self.known = true;
    }

    /// Calls a method. Logs in first where that is needed. The call may have taken effect even if
    /// the answer is an error.
    pub(super) fn call(&mut self, method: &str, body: &Value) -> Result<Value, EtcdError> {
        let until = Instant::now() + self.whole;
        let mut said = Vec::new();
        // Try each endpoint twice: a connection that was kept may have been closed meanwhile.
        for _ in 0..2 * self.endpoints.len() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let endpoint = self.endpoints[self.next].clone();
            match self.ask(&endpoint, method, body, left.min(self.attempt)) {
                Ok(answer) => return Ok(answer),
                Err(Asked::Final(error)) => return Err(error),
                Err(Asked::LoggedOut) => {}
                Err(Asked::Elsewhere(why)) => {
                    self.next = (self.next + 1) % self.endpoints.len();
                    self.known = false;
                    let text = format!("{endpoint}: {why}");
                    if !said.contains(&text) {
                        said.push(text);
                    }
                }
            }
        }
        if said.is_empty() {
            said.push(format!("no time left at {}", self.endpoints[self.next]));
        }
        Err(EtcdError::Silent(said.join(", ")))
    }

    fn ask(
        &mut self,
        endpoint: &str,
        method: &str,
        body: &Value,
        limit: Duration,
    ) -> Result<Value, Asked> {
        let until = Instant::now() + limit;
        let left = || until.saturating_duration_since(Instant::now());
        if let (Some((user, password)), None) = (&self.login, &self.token) {
            let login = json!({ "name": user, "password": password });
            let answer = self.post(endpoint, "auth/authenticate", &login, left())?;
            self.token = answer["token"].as_str().map(str::to_owned);
        }
        let asked = self.recognise(endpoint, left());
        let asked = asked.and_then(|()| self.post(endpoint, method, body, left()));
        match &asked {
            // A member forgets a token when it restarts, and after a while.
            Err(Asked::Final(EtcdError::Refused { code, message, .. }))
                if (*code == UNAUTHENTICATED || message.contains(OLD_TOKEN))
                    && self.token.take().is_some() =>
            {
                Err(Asked::LoggedOut)
            }
            _ => asked,
        }
    }

    /// Makes sure that an endpoint belongs to the cluster before it is asked to change anything:
    /// what another cluster does or refuses has nothing to do with the seats.
    fn recognise(&mut self, endpoint: &str, limit: Duration) -> Result<(), Asked> {
        if let Some((_, key)) = self.cluster.as_ref().filter(|_| !self.known) {
            let body = json!({ "key": bytes(key), "serializable": true, "keys_only": true });
            self.post(endpoint, "kv/range", &body, limit)?;
        }
        self.known = true;
        Ok(())
    }

    fn post(
        &self,
        endpoint: &str,
        method: &str,
        body: &Value,
        limit: Duration,
    ) -> Result<Value, Asked> {
        let request = self.agent.post(format!("{endpoint}/v3/{method}"));
        let request = match &self.token {
            Some(token) => request.header("Authorization", token),
            None => request,
        };
        let request = request.content_type("application/json");
        let request = request.config().timeout_global(Some(limit)).build();
        let elsewhere = |error: ureq::Error| Asked::Elsewhere(error.to_string());
        let mut response = request.send(body.to_string()).map_err(elsewhere)?;
        let text = response.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        let text = text.read_to_string().map_err(elsewhere)?;
        let status = response.status();
        // A stream answers with one object per line; these calls have one answer.
        let first = text.lines().next().unwrap_or_default();
        let Ok(answer) = serde_json::from_str::<Value>(first) else {
            let what = format!("it answers with status {status} and not as etcd does");
            return Err(Asked::Elsewhere(what));
        };
        let error = &answer["error"];
        if status.is_success() && error.is_null() {
            let answer = match &answer["result"] {
                Value::Null => answer,
                result => result.clone(),
            };
            let found = &answer["header"]["cluster_id"];
            return match (&self.cluster, found.as_str()) {
                (Some((ours, _)), Some(found)) if ours != found => Err(Asked::Elsewhere(format!(
                    "it is of another cluster, {found}"
                ))),
                _ => Ok(answer),
            };
        }
        let code = [&answer["code"], &error["grpc_code"]].map(Value::as_u64);
        let code = code.into_iter().flatten().next().unwrap_or(0);
        let message = [&answer["message"], &error["message"], error].map(Value::as_str);
        let message = message.into_iter().flatten().next().unwrap_or("no reason");
        if ELSEWHERE.contains(&code) || (code == 0 && status.is_server_error()) {
            return Err(Asked::Elsewhere(message.to_owned()));
        }
        Err(Asked::Final(EtcdError::Refused {
            endpoint: endpoint.to_owned(),
            code,
            message: message.to_owned(),
        }))
    }
}

/// Why one endpoint failed.
enum Asked {
    Elsewhere(String),
    /// The endpoint has forgotten the login.
    LoggedOut,
    Final(EtcdError),
}

/// Bytes, encoded as the gateway wants them.
pub(super) fn bytes(text: &str) -> String {
    BASE64.encode(text)
}

/// Decoded bytes of an answer.
pub(super) fn text(value: &Value) -> Option<String> {
    let bytes = BASE64.decode(value.as_str()?).ok()?;
    String::from_utf8(bytes).ok()
}

/// A 64-bit number of an answer, which the gateway sends as text; 0 if it is left out.
pub(super) fn number(value: &Value) -> i64 {
    let text = value.as_str().and_then(|text| text.parse().ok());
    text.or_else(|| value.as_i64()).unwrap_or(0)
}

fn tls(options: &EtcdOptions) -> Result<TlsConfig, EtcdError> {
    let mut tls = TlsConfig::builder();
    if let Some(path) = &options.ca {
        tls = tls.root_certs(RootCerts::new_with_certs(&certificates("ca", path)?));
    }
    if let (Some(cert), Some(key)) = (&options.cert, &options.key) {
        let chain = certificates("cert", cert)?;
        let pem = read_private(key).map_err(|error| file("key", key, &error))?;
        let key = PrivateKey::from_pem(&pem).map_err(|error| file("key", key, &error))?;
        tls = tls.client_cert(Some(ClientCert::new_with_certs(&chain, key)));
    }
    Ok(tls.build())
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<Certificate<'static>>, EtcdError> {
    let pem = std::fs::read(path).map_err(|error| file(key, path, &error))?;
    let mut found = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(one) = item.map_err(|error| file(key, path, &error))? {
            found.push(one);
        }
    }
    match found.is_empty() {
        true => Err(file(key, path, &"holds no certificate (PEM)")),
        false => Ok(found),
    }
}

fn file(key: &'static str, path: &Path, what: &dyn std::fmt::Display) -> EtcdError {
    let what = format!("{} {what}", path.display());
    EtcdError::File { key, what }
}
