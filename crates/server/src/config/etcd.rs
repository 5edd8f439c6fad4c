//! The section `[ownership.etcd]`: where the etcd is that keeps the seats, and how to get in.

use super::ConfigError;
use super::source::Section;
use std::path::PathBuf;

/// The shortest time to live of leases in etcd, which counts whole seconds and has a minimum.
pub(super) const TTL_MS_MIN: u32 = 2000;
const PREFIX: &str = "/tidegate";

/// An etcd cluster, and how a forwarder uses it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdOptions {
    /// `http://HOST:PORT` or `https://HOST:PORT`, tried in turn.
    pub endpoints: Vec<String>,
    /// What all keys begin with.
    pub prefix: String,
    /// Certificates of who may vouch for the servers.
    pub ca: Option<PathBuf>,
    /// This forwarder's own certificate.
    pub cert: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
    /// etcd's name of the user.
    pub user: Option<String>,
    /// File with his password.
    pub password_file: Option<PathBuf>,
}

/// Reads the section; None if it is not there.
pub(super) fn etcd(mut section: Section) -> Result<Option<(EtcdOptions, String)>, ConfigError> {
    let written = !section.is_empty();
    let listed = section.texts("endpoints")?;
    let missing = section.missing(
        "endpoints",
        "name etcd's servers, such as [\"https://etcd1:2379\"]",
    );
    let prefix = section.text("prefix")?;
    let ca = section.text("ca")?;
    let cert = section.text("cert")?;
    let key = section.text("key")?;
    let user = section.text("user")?;
    let password = section.text("password_file")?;
    section.finish()?;
    if !written {
        return Ok(None);
    }
    let Some((endpoints, place)) = listed.filter(|(all, _)| !all.is_empty()) else {
        return Err(missing);
    };
    for endpoint in &endpoints {
        check_endpoint(endpoint).map_err(|what| ConfigError::new(&place, what))?;
    }
    let secure = endpoints.iter().any(|one| one.starts_with("https://"));
    let wrong = |what: &str| Err(ConfigError::new(&place, what));
    if secure != ca.is_some() {
        return wrong(
            "https:// in endpoints and ca go together: ca names the file with the certificate \
             (PEM) that vouches for etcd's servers",
        );
    }
    if cert.is_some() != key.is_some() || (cert.is_some() && !secure) {
        return wrong("cert and key go together, with https:// in endpoints");
    }
    if user.is_some() != password.is_some() {
        return wrong("user and password_file go together");
    }
    let (prefix, at) = prefix.unwrap_or_else(|| (PREFIX.to_owned(), place.clone()));
    if prefix.trim_end_matches('/').is_empty() {
        let what = "prefix is empty: name what all keys begin with, such as \"/tidegate\"";
        return Err(ConfigError::new(&at, what));
    }
    let path = |value: Option<(String, String)>| value.map(|(path, _)| PathBuf::from(path));
    let options = EtcdOptions {
        endpoints: endpoints
            .iter()
            .map(|one| one.trim_end_matches('/').to_owned())
            .collect(),
        prefix: prefix.trim_end_matches('/').to_owned(),
        ca: path(ca),
        cert: path(cert),
        key: path(key),
        user: user.map(|(user, _)| user),
        password_file: path(password),
    };
    Ok(Some((options, place)))
}

/// Scheme, host and port, and nothing else.
fn check_endpoint(endpoint: &str) -> Result<(), String> {
    let bare = endpoint.trim_end_matches('/');
    let rest = bare
        .strip_prefix("http://")
        .or_else(|| bare.strip_prefix("https://"));
    let good = rest
        .and_then(|rest| rest.rsplit_once(':'))
        .is_some_and(|(host, port)| {
            let plain = !host.contains(['/', '@', ' ', '?', '#']);
            !host.is_empty() && plain && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
    match good {
        true => Ok(()),
        false => Err(format!(
            "endpoint \"{endpoint}\" must be http://HOST:PORT or https://HOST:PORT"
        )),
    }
}
