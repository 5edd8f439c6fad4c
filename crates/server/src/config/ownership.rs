//! The section `[ownership]`: how forwarders keep the seats of an export apart.

use super::ConfigError;
use super::etcd::{EtcdOptions, TTL_MS_MIN};
use super::source::Section;

/// How forwarders keep seats apart, and what a seat's reply table outlives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnershipOptions {
    /// All forwarders of the export run on this node and use the same mount of the back end.
    pub one_node: bool,
    /// What the reply table outlives; None: as the back end demands.
    pub durability: Option<Durability>,
    /// How long a seat stays its holder's after the last time that the holder said so, ms.
    pub ttl_ms: u32,
    /// How often a forwarder tries the back end with another, s; 0: only when it starts.
    pub probe_s: u32,
    /// The etcd that keeps the seats; None: files of the back end do.
    pub etcd: Option<EtcdOptions>,
}

/// What a seat's reply table outlives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The forwarder's process: the table lies in the page cache of its node.
    Process,
    /// The forwarder's node: an intent is on the back end before the operation takes effect.
    Node,
}

/// Reads the section.
pub(super) fn ownership(
    mut section: Section,
    etcd: Option<(EtcdOptions, String)>,
) -> Result<OwnershipOptions, ConfigError> {
    let durability = match section.text("durability")? {
        None => None,
        Some((word, _)) if word == "process" => Some(Durability::Process),
        Some((word, _)) if word == "node" => Some(Durability::Node),
        Some((word, place)) => {
            let what = format!("durability = \"{word}\" must be one of process, node");
            return Err(ConfigError::new(&place, what));
        }
    };
    let keeper = section.text("keeper")?;
    let ttl_place = section.place("ttl_ms");
    let options = OwnershipOptions {
        one_node: section.bool("one_node", false)?,
        durability,
        ttl_ms: section.number("ttl_ms", 8000, (500, 600_000))? as u32,
        probe_s: section.number("probe_s", 60, (0, 86_400))? as u32,
        etcd: keeper_of_seats(keeper, etcd)?,
    };
    section.finish()?;
    let short = options.etcd.is_some() && options.ttl_ms < TTL_MS_MIN;
    if let Some(place) = ttl_place.filter(|_| short) {
        let what = format!(
            "ttl_ms = {} must be at least {TTL_MS_MIN} with keeper = \"etcd\", which counts \
             whole seconds",
            options.ttl_ms
        );
        return Err(ConfigError::new(&place, what));
    }
    Ok(options)
}

/// The etcd that keeps the seats, if one does.
fn keeper_of_seats(
    keeper: Option<(String, String)>,
    etcd: Option<(EtcdOptions, String)>,
) -> Result<Option<EtcdOptions>, ConfigError> {
    let Some((word, place)) = keeper else {
        return keeper_of_seats(Some(("files".to_owned(), String::new())), etcd);
    };
    match (word.as_str(), etcd) {
        ("files", None) => Ok(None),
        ("files", Some((_, place))) => {
            let what = "[ownership.etcd] is there and not used: set keeper = \"etcd\" in \
                        [ownership], or remove it";
            Err(ConfigError::new(&place, what))
        }
        ("etcd", Some((etcd, _))) => Ok(Some(etcd)),
        ("etcd", None) => {
            let what = "keeper = \"etcd\" needs a section [ownership.etcd] with endpoints, such \
                        as [\"http://etcd1:2379\"]";
            Err(ConfigError::new(&place, what))
        }
        _ => {
            let what = format!("keeper = \"{word}\" must be one of files, etcd");
            Err(ConfigError::new(&place, what))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Source};
    use super::*;

    fn parse(text: &str) -> Result<OwnershipOptions, String> {
        let good = "export = \"/tmp\"\nlisten = [\"unix:/tmp/x.sock\"]\n";
        let source =
            Source::parse(&format!("{good}{text}"), "f.toml").map_err(|e| e.to_string())?;
        let config = Config::from_source(source).map_err(|error| error.to_string())?;
        Ok(config.ownership)
    }

    #[test]
    fn the_back_end_decides_unless_the_file_does() {
        let none = parse("").expect("it is valid");
        assert_eq!(
            (none.one_node, none.durability, none.ttl_ms, none.probe_s),
            (false, None, 8000, 60)
        );
        let text =
            "[ownership]\none_node = true\ndurability = \"node\"\nttl_ms = 500\nprobe_s = 0\n";
        let all = parse(text).expect("it is valid");
        let node = Some(Durability::Node);
        assert_eq!(
            (all.one_node, all.durability, all.ttl_ms, all.probe_s),
            (true, node, 500, 0)
        );
    }

    #[test]
    fn etcd_is_used_where_it_is_asked_for_and_said_to_be() {
        let section = "[ownership.etcd]\nendpoints = [\"http://a:2379/\", \"http://[::1]:2\"]\n";
        let keeper = "[ownership]\nkeeper = \"etcd\"\n";
        let found = parse(&format!("{keeper}{section}")).expect("it is valid");
        let etcd = found.etcd.expect("it is asked for");
        assert_eq!(etcd.endpoints, ["http://a:2379", "http://[::1]:2"]);
        assert_eq!(etcd.prefix, "/tidegate");
        let refusals = [
            (
                keeper.to_owned(),
                "f.toml:4: keeper = \"etcd\" needs a section",
            ),
            (
                section.to_owned(),
                "f.toml:4: [ownership.etcd] is there and not used",
            ),
            (
                format!("{keeper}[ownership.etcd]\nprefix = \"/x\"\n"),
                "f.toml: \"endpoints\" is missing",
            ),
            (
                format!("{keeper}{section}paths = 1\n"),
                "f.toml:7: unknown key \"paths\" in [ownership.etcd]; known: endpoints",
            ),
            (
                format!("{keeper}ttl_ms = 1999\n{section}"),
                "f.toml:5: ttl_ms = 1999 must be at least 2000 with keeper = \"etcd\"",
            ),
            (
                format!("{keeper}{section}user = \"root\"\n"),
                "f.toml:6: user and password_file go together",
            ),
            (
                format!("{keeper}{section}ca = \"/ca.pem\"\n"),
                "f.toml:6: https:// in endpoints and ca go together",
            ),
            (
                format!("{keeper}[ownership.etcd]\nendpoints = [\"etcd1:2379\"]\n"),
                "f.toml:6: endpoint \"etcd1:2379\" must be http://HOST:PORT or https",
            ),
            (
                "[ownership]\nkeeper = \"zookeeper\"\n".to_owned(),
                "f.toml:4: keeper = \"zookeeper\" must be one of files, etcd",
            ),
            (
                "[ownership.zk]\nport = 3\n".to_owned(),
                "f.toml:3: unknown key \"zk\" in [ownership]",
            ),
        ];
        for (text, expected) in refusals {
            let error = parse(&text).expect_err(&text);
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn wrong_words_are_refused() {
        let error = parse("[ownership]\ndurability = \"disk\"\n").expect_err("must be refused");
        assert!(error.starts_with("f.toml:4: durability = \"disk\" must be one of process, node"));
        let error = parse("[ownership]\nttl_ms = 3\n").expect_err("must be refused");
        assert!(error.starts_with("f.toml:4: ttl_ms = 3 must be a number from 500"));
    }
}
