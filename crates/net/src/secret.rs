//! Secrets of the connections between nodes: their files, and the keys that come of them.
//!
//! A site has one secret, which only its forwarders need. Of it come the key pair of the forwarders
//! and the key of every [`Grant`]: HMAC-SHA-256 of the grant's text under the site's secret. A
//! *derived secret* is the file with one grant, its key, and the forwarders' public key. Whoever
//! has it can prove that grant and nothing else, and cannot pose as a forwarder. Whoever has the
//! site's secret has the grant [`Grant::site`].
//!
//! The key of a ticket is HMAC-SHA-256 of the ticket's own text under its giver's key. So a node's
//! mount makes tickets without asking anybody, and who has a ticket has nothing of the mount's.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use ring::rand::{SecureRandom, SystemRandom};
use ring::{digest, hmac};
use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use std::fmt;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use tidegate_wire::{Caller, Grant, GrantError};

/// Fewest bytes of a site's secret.
const SECRET_LEN_MIN: usize = 16;
/// Longest file of a secret, in bytes.
const FILE_LEN_MAX: u64 = 64 << 10;
/// The first line of a derived secret.
const DERIVED: &str = "tidegate-derived-secret 1";

/// What goes before a grant's text where its key is computed.
const GRANT_LABEL: &[u8] = b"tidegate grant 1\0";
/// What goes before a ticket's own text where its key is computed.
const TICKET_LABEL: &[u8] = b"tidegate ticket 1\0";
/// Of this comes the forwarders' private key.
const FORWARDER_LABEL: &[u8] = b"tidegate forwarder 1\0";

/// Bytes of a key.
pub(crate) const KEY_LEN: usize = 32;
/// A key.
pub(crate) type Key = [u8; KEY_LEN];

/// Why a file cannot serve as a secret, in words that follow its path in a message.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The system refuses to read it.
    #[error("cannot be read: {0}")]
    Read(#[from] io::Error),
    /// Its mode lets its group or everybody read, write or execute it.
    #[error("can be read by others; `chmod 600` it")]
    Exposed,
    /// It belongs to a user who is neither this process's nor root, and who can read and change it.
    #[error(
        "belongs to user {owner}; it must belong to user {own}, as whom this process runs, \
         or to root"
    )]
    Foreign {
        /// The owner.
        owner: u32,
        /// The user of this process.
        own: u32,
    },
    /// It holds so few bytes that they can be guessed.
    #[error(
        "holds {0} bytes; at least {SECRET_LEN_MIN} are needed, for example \
         `head -c 32 /dev/urandom | base64`"
    )]
    Short(usize),
    /// The file is too long to be a secret.
    #[error("is longer than {FILE_LEN_MAX} bytes")]
    Long,
    /// It begins as a derived secret does, and goes on in another way.
    #[error("is a damaged derived secret: {0}; make it anew with `tidegate secret`")]
    Damaged(String),
    /// A forwarder was given a derived secret.
    #[error("is a derived secret; a forwarder needs the site's secret, of which that was made")]
    Derived,
}

impl From<GrantError> for SecretError {
    fn from(error: GrantError) -> SecretError {
        SecretError::Damaged(error.to_string())
    }
}

/// Reads a file that only its owner may read, who is root or this process's user, and strips the
/// white space at its end.
pub fn read_private(path: &Path) -> Result<Vec<u8>, SecretError> {
    let file = std::fs::File::open(path)?;
    let found = file.metadata()?;
    if found.permissions().mode() & 0o077 != 0 {
        return Err(SecretError::Exposed);
    }
    let (owner, own) = (found.uid(), rustix::process::geteuid().as_raw());
    if owner != own && owner != 0 {
        return Err(SecretError::Foreign { owner, own });
    }
    let mut bytes = Vec::new();
    file.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_LEN_MAX {
        return Err(SecretError::Long);
    }
    bytes.truncate(bytes.trim_ascii_end().len());
    Ok(bytes)
}

/// Tells one secret of a site from another: the first bytes of SHA-256 of the forwarders' public
/// key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteId(pub(crate) [u8; 8]);

impl SiteId {
    pub(crate) fn of(public: &Key) -> SiteId {
        let digest = digest::digest(&digest::SHA256, public);
        SiteId(*digest.as_ref().first_chunk().expect("a digest is longer"))
    }
}

/// What a client proves itself with. Its keys are never printed.
pub struct Secret {
    pub(crate) grant: Grant,
    pub(crate) key: Key,
    /// The forwarders' public key.
    pub(crate) forwarders: Key,
}

impl Secret {
    /// Reads a derived secret, or the site's, by the rules of [`read_private`].
    pub fn read(path: &Path) -> Result<Secret, SecretError> {
        Secret::of_bytes(read_private(path)?)
    }

    /// The secret in the bytes of its file, without the white space at their end.
    pub fn of_bytes(bytes: Vec<u8>) -> Result<Secret, SecretError> {
        match is_derived(&bytes) {
            true => Secret::of_text(&bytes),
            false => Ok(SiteSecret::of_bytes(bytes)?.derive(Grant::site())?),
        }
    }

    /// What it lets its holder do.
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// The text of its file.
    pub fn to_text(&self) -> String {
        let (key, forwarders) = (BASE64.encode(self.key), BASE64.encode(self.forwarders));
        format!(
            "{DERIVED}\nforwarders={forwarders}\nkey={key}\n{}",
            self.grant
        )
    }

    /// The secret that proves a ticket to the site's forwarders: see [`Grant::ticket`].
    pub fn ticket(&self, user: Caller, node: &str, expires: u64) -> Result<Secret, GrantError> {
        let grant = self.grant.ticket(user, node, expires)?;
        Ok(Secret {
            key: ticket_key(&self.key, &grant),
            forwarders: self.forwarders,
            grant,
        })
    }

    /// Reads the text of a derived secret, of which the white space at the end is stripped.
    pub fn of_text(bytes: &[u8]) -> Result<Secret, SecretError> {
        let damaged = |what: &str| SecretError::Damaged(what.into());
        let text = std::str::from_utf8(bytes).map_err(|_| damaged("it is no text"))?;
        let rest = text.strip_prefix(DERIVED).unwrap_or_default();
        let mut lines = rest.strip_prefix('\n').unwrap_or_default().splitn(3, '\n');
        let mut key = |name: &str| {
            let line = lines.next().unwrap_or_default();
            let value = line.strip_prefix(name)?.strip_prefix('=')?;
            Key::try_from(BASE64.decode(value).ok()?).ok()
        };
        let forwarders = key("forwarders").ok_or_else(|| damaged("its second line"))?;
        let key = key("key").ok_or_else(|| damaged("its third line"))?;
        // Reading the file has stripped the end of its last line.
        let grant = format!("{}\n", lines.next().unwrap_or_default());
        Ok(Secret {
            grant: Grant::parse(grant.as_bytes())?,
            key,
            forwarders,
        })
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret")
            .field("grant", &self.grant)
            .finish_non_exhaustive()
    }
}

/// The secret of a site, of which its forwarders make all keys. It is never printed.
pub struct SiteSecret {
    root: hmac::Key,
    pub(crate) private: Key,
    public: Key,
}

impl SiteSecret {
    /// Reads a site's secret by the rules of [`read_private`]; an error if it has less than 16
    /// bytes.
    pub fn read(path: &Path) -> Result<SiteSecret, SecretError> {
        SiteSecret::of_bytes(read_private(path)?)
    }

    /// The secret in the bytes of its file, without the white space at their end.
    pub fn of_bytes(bytes: Vec<u8>) -> Result<SiteSecret, SecretError> {
        if is_derived(&bytes) {
            return Err(SecretError::Derived);
        }
        if bytes.len() < SECRET_LEN_MIN {
            return Err(SecretError::Short(bytes.len()));
        }
        let root = hmac::Key::new(hmac::HMAC_SHA256, &bytes);
        let private = mac(&root, &[FORWARDER_LABEL]);
        let mut pair = DefaultResolver
            .resolve_dh(&DHChoice::Curve25519)
            .expect("the library was built with this curve");
        pair.set(&private);
        let public = Key::try_from(pair.pubkey()).expect("a key of this curve has 32 bytes");
        Ok(SiteSecret {
            root,
            private,
            public,
        })
    }

    /// The secret that proves a grant to this site's forwarders. An error says what the grant must
    /// not have.
    pub fn derive(&self, grant: Grant) -> Result<Secret, GrantError> {
        grant.check()?;
        Ok(Secret {
            key: self.key_of(&grant),
            grant,
            forwarders: self.public,
        })
    }

    /// The key of a grant.
    pub(crate) fn key_of(&self, grant: &Grant) -> Key {
        match &grant.by {
            Some(by) => ticket_key(&self.key_of(by), grant),
            None => mac(&self.root, &[GRANT_LABEL, grant.own_text().as_bytes()]),
        }
    }

    /// What tells it from the secrets of other sites.
    pub fn id(&self) -> SiteId {
        SiteId::of(&self.public)
    }

    /// The forwarders' public key.
    #[cfg(test)]
    pub(crate) fn public(&self) -> &Key {
        &self.public
    }
}

impl fmt::Debug for SiteSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SiteSecret")
    }
}

/// The text of a new secret of a site, from the system's random source.
pub fn random_text() -> io::Result<String> {
    let mut bytes = Key::default();
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| io::Error::other("the system has no random bytes"))?;
    Ok(format!("{}\n", BASE64.encode(bytes)))
}

fn is_derived(bytes: &[u8]) -> bool {
    bytes.starts_with(DERIVED.as_bytes())
}

fn ticket_key(giver: &Key, ticket: &Grant) -> Key {
    let giver = hmac::Key::new(hmac::HMAC_SHA256, giver);
    mac(&giver, &[TICKET_LABEL, ticket.own_text().as_bytes()])
}

fn mac(key: &hmac::Key, pieces: &[&[u8]]) -> Key {
    let mut mac = hmac::Context::with_key(key);
    pieces.iter().for_each(|piece| mac.update(piece));
    let tag = mac.sign();
    Key::try_from(tag.as_ref()).expect("HMAC-SHA-256 makes 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_wire::{Limits, Role};

    fn site(bytes: &[u8]) -> SiteSecret {
        SiteSecret::of_bytes(bytes.to_vec()).expect("it is long enough")
    }

    fn operator(name: &str) -> Grant {
        Grant {
            role: Role::Operator,
            name: name.into(),
            expires: Some(1_800_000_000),
            by: None,
        }
    }

    #[test]
    fn the_key_of_a_grant_is_hmac_sha_256() {
        // Computed with Python's hmac module.
        let key = site(b"open sesame, please").key_of(&Grant::site());
        let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "75551337b5e1b80c17abfabf039196cce4996c677f746bb1020a8d13ffa2f4c0"
        );
    }

    #[test]
    fn a_derived_secret_is_read_as_it_was_written() {
        let secret = site(b"open sesame, please").derive(operator("ann"));
        let secret = secret.expect("the grant is right");
        let text = secret.to_text();
        let read = Secret::of_text(text.trim_ascii_end().as_bytes()).expect("it is right");
        assert_eq!(read.grant, operator("ann"));
        assert_eq!((read.key, read.forwarders), (secret.key, secret.forwarders));
        for cut in 0..text.trim_ascii_end().len() {
            // Where only the end is missing, it is another grant, whose key is wrong.
            if let Ok(read) = Secret::of_text(&text.as_bytes()[..cut]) {
                assert_ne!(read.grant, secret.grant, "{cut}");
            }
        }
    }

    #[test]
    fn each_grant_and_each_site_has_a_key_of_its_own() {
        let key = |site_secret: &[u8], name| {
            let secret = site(site_secret).derive(operator(name));
            secret.expect("the grant is right").key
        };
        let (first, second) = (b"open sesame, please", b"open sesame, pleasf");
        assert_eq!(key(first, "ann"), key(first, "ann"));
        assert_ne!(key(first, "ann"), key(first, "bob"));
        assert_ne!(key(first, "ann"), key(second, "ann"));
        assert_ne!(site(first).public(), site(second).public());
    }

    #[test]
    fn the_key_of_a_ticket_comes_of_its_givers_key() {
        let site = site(b"open sesame, please");
        let mount = Grant {
            role: Role::Mount(Limits::default()),
            ..operator("cn1")
        };
        let mount = site.derive(mount).expect("the grant is right");
        let user = Caller::alone(1000, 100);
        let ticket = mount.ticket(user.clone(), "", 9).expect("it may");
        // Computed with Python's hmac module.
        let hex: String = ticket
            .key
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(
            hex,
            "1b6bae1188dd417a352621700d73c097b8cd692bf85f44a667b9749525086195"
        );
        // So do forwarders compute it, and so does its text tell it.
        assert_eq!(site.key_of(&ticket.grant), ticket.key);
        let read = Secret::of_text(ticket.to_text().trim_ascii_end().as_bytes());
        let read = read.expect("it is right");
        assert_eq!((&read.grant, read.key), (&ticket.grant, ticket.key));
        // The same user's derived secret, another user's ticket, another giver's: other keys.
        let plain = Grant {
            by: None,
            ..ticket.grant.clone()
        };
        let keys = [
            site.key_of(&plain),
            mount
                .ticket(Caller::alone(1001, 100), "", 9)
                .expect("it may")
                .key,
            mount.ticket(user.clone(), "", 10).expect("it may").key,
            site.derive(Grant::site())
                .expect("right")
                .ticket(user, "cn1", 9)
                .expect("it may")
                .key,
            mount.key,
        ];
        assert!(keys.iter().all(|key| *key != ticket.key));
    }

    #[test]
    fn a_file_is_taken_if_only_its_owner_can_read_it_and_it_is_long_enough() {
        let name = format!("tidegate-secret-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let write = |bytes: &[u8], mode: u32| {
            let _ = std::fs::remove_file(&path);
            std::fs::write(&path, bytes).expect("it is ours");
            let mode = PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&path, mode).expect("it is ours");
        };
        let read = |bytes: &[u8], mode: u32| {
            write(bytes, mode);
            Secret::read(&path)
        };
        let good = b"0123456789abcdef \n";
        let key = site(&good[..16]).key_of(&Grant::site());
        assert_eq!(read(good, 0o600).expect("it is good").key, key);
        assert!(read(good, 0o400).is_ok());
        for mode in [0o640, 0o604, 0o644] {
            assert!(matches!(read(good, mode), Err(SecretError::Exposed)));
        }
        if rustix::process::geteuid().is_root() {
            read(good, 0o600).expect("it is good");
            std::os::unix::fs::chown(&path, Some(12_345), None).expect("it is root");
            let theirs = Secret::read(&path).expect_err("it is another user's");
            assert!(theirs.to_string().starts_with("belongs to user 12345; "));
        }
        let short = read(b"0123456789abcde \n", 0o600);
        assert!(matches!(short, Err(SecretError::Short(15))));
        let long = read(&vec![b'x'; (64 << 10) + 1], 0o600);
        assert!(matches!(long, Err(SecretError::Long)));
        let derived = site(good)
            .derive(operator("ann"))
            .expect("it is right")
            .to_text();
        assert_eq!(
            read(derived.as_bytes(), 0o600).expect("it is good").grant,
            operator("ann")
        );
        assert!(matches!(SiteSecret::read(&path), Err(SecretError::Derived)));
        let damaged = read(derived.replace("ann", "a/n").as_bytes(), 0o600);
        assert!(matches!(damaged, Err(SecretError::Damaged(_))));
        std::fs::remove_file(&path).expect("it is ours");
        assert!(matches!(Secret::read(&path), Err(SecretError::Read(_))));
    }
}
