//! `tidegate secret`: makes the secret of a site, and of it secrets that allow less.

use crate::fail::Fail;
use crate::{out, outln};
use serde_json::json;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_client::wire::{Anonymous, Grant, Ids, Limits, NOBODY, Role};
use tidegate_server::secret::{Secret, SiteSecret, random_text};

const DAY_S: u64 = 86_400;

/// Make the secret of a site, or of it one that allows less, or show what one allows.
#[derive(clap::Args)]
pub struct Secrets {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    New(New),
    Derive(Derive),
    Show(Show),
}

/// Make a random secret for the forwarders of a site.
#[derive(clap::Args)]
struct New {
    /// File to make; only its owner can read it
    file: PathBuf,
}

/// Make a secret that allows less than the site's.
///
/// A `mount` acts for the users of its node, for all of them unless it is told for whom, and cannot
/// change policies and shares or set forwarders aside. An `operator` can do just that, and reaches
/// no file. A `user` is that user. Forwarders know it by the site's secret; nothing has to be told
/// to them. It is void when the site's secret is changed.
#[derive(clap::Args)]
struct Derive {
    /// File to make; only its owner can read it
    file: PathBuf,
    /// File with the site's secret
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    /// What its holder is
    #[arg(long, value_name = "ROLE", value_parser = ["mount", "operator", "user"])]
    role: String,
    /// To whom it is given, such as the node's name: for logs
    #[arg(long)]
    name: String,
    /// The user's id, with the role `user`
    #[arg(long, value_name = "UID", requires = "gid")]
    uid: Option<u32>,
    /// The user's group
    #[arg(long, value_name = "GID", requires = "uid")]
    gid: Option<u32>,
    /// The user's other groups, with commas between
    #[arg(long, value_name = "GIDS", value_delimiter = ',', requires = "uid")]
    groups: Vec<u32>,
    #[command(flatten)]
    limits: LimitWords,
    /// Days from now on after which it is void; without this it does not expire
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=36_500))]
    days: Option<u64>,
}

/// For whom a mount acts, if not for all users.
#[derive(clap::Args)]
struct LimitWords {
    /// A `mount` only: do root's requests as the anonymous user
    #[arg(long)]
    root_squash: bool,
    /// The anonymous user, 65534 unless given
    #[arg(long, value_name = "UID", requires = "root_squash")]
    anonuid: Option<u32>,
    /// The anonymous user's group, 65534 unless given
    #[arg(long, value_name = "GID", requires = "root_squash")]
    anongid: Option<u32>,
    /// A `mount` only: the users for whom it acts, such as 1000-60000,70001
    #[arg(long, value_name = "UIDS")]
    uids: Option<Ids>,
    /// A `mount` only: the groups that count, written as in --uids
    #[arg(long, value_name = "GIDS")]
    gids: Option<Ids>,
}

impl LimitWords {
    fn any(&self) -> bool {
        self.root_squash || self.uids.is_some() || self.gids.is_some()
    }

    fn limits(self) -> Result<Limits, Fail> {
        let anonymous = Anonymous {
            anonuid: self.anonuid.unwrap_or(NOBODY.anonuid),
            anongid: self.anongid.unwrap_or(NOBODY.anongid),
        };
        anonymous.check().map_err(Fail::usage)?;
        Ok(Limits {
            root_squash: self.root_squash.then_some(anonymous),
            uids: self.uids,
            gids: self.gids,
        })
    }
}

/// Show what a secret allows, without its keys.
#[derive(clap::Args)]
struct Show {
    /// File with the secret
    file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Secrets {
    /// Makes or shows a secret.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        match self.what {
            What::New(new) => make(&new.file, &random_text().map_err(Fail::runtime)?)?,
            What::Derive(derive) => derive.perform()?,
            What::Show(show) => show.perform()?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Derive {
    fn perform(self) -> Result<(), Fail> {
        let site = SiteSecret::read(&self.from).map_err(|error| wrong(&self.from, error))?;
        if self.role != "mount" && self.limits.any() {
            return Err(Fail::usage(
                "--root-squash, --uids and --gids are for --role mount",
            ));
        }
        let role = match (self.role.as_str(), self.uid, self.gid) {
            ("user", Some(uid), Some(gid)) => Role::User {
                uid,
                gid,
                groups: self.groups.into(),
            },
            ("user", ..) => return Err(Fail::usage("--role user needs --uid and --gid")),
            (_, Some(_), _) => return Err(Fail::usage("--uid is for --role user")),
            ("mount", ..) => Role::Mount(self.limits.limits()?),
            _ => Role::Operator,
        };
        let grant = Grant {
            role,
            name: self.name.into(),
            expires: self.days.map(|days| now_s() + days * DAY_S),
            by: None,
        };
        let secret = site.derive(grant).map_err(Fail::usage)?;
        make(&self.file, &secret.to_text())
    }
}

impl Show {
    fn perform(self) -> Result<(), Fail> {
        let secret = Secret::read(&self.file).map_err(|error| wrong(&self.file, error))?;
        let grant = secret.grant();
        let role = grant.role.name();
        let (user, limits) = match &grant.role {
            Role::Site | Role::Operator => (None, None),
            Role::Mount(limits) => (None, Some(json_of(limits))),
            Role::User { uid, gid, groups } => {
                let user = json!({"uid": uid, "gid": gid, "groups": groups});
                (Some(user), None)
            }
        };
        if self.json {
            let (name, expires) = (&grant.name, grant.expires);
            let line = json!({
                "role": role,
                "name": name,
                "user": user,
                "limits": limits,
                "expires_s": expires,
            });
            outln!("{line}");
            return Ok(());
        }
        out!("{}", grant);
        match grant.expires {
            Some(expires) if expires <= now_s() => outln!("it has expired"),
            Some(expires) => outln!("it expires in {} days", (expires - now_s()) / DAY_S),
            None => {}
        }
        Ok(())
    }
}

/// For whom a mount acts; what is null does not limit it.
fn json_of(limits: &Limits) -> serde_json::Value {
    json!({
        "root_squash": limits.root_squash.map(|it| it.to_string()),
        "uids": limits.uids.as_ref().map(Ids::to_string),
        "gids": limits.gids.as_ref().map(Ids::to_string),
    })
}

fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

fn wrong(path: &Path, error: impl std::fmt::Display) -> Fail {
    Fail::usage(format!("secret file {} {error}", path.display()))
}

/// Makes a new file that only this user can read.
fn make(path: &Path, text: &str) -> Result<(), Fail> {
    let mut options = OpenOptions::new();
    let made = options.write(true).create_new(true).mode(0o600).open(path);
    let wrote = made.and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    wrote.map_err(|error| {
        let advice = match error.kind() {
            ErrorKind::AlreadyExists => "; it was not overwritten: name another file",
            _ => "",
        };
        Fail::usage(format!("{}: {error}{advice}", path.display()))
    })
}
