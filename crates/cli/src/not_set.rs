//! What is said of forwarders that did not take a change of policy or shares.

use crate::stat::why;
use tidegate_client::Errno;

/// A line about the forwarders that did not take `what`: those that refused it, and those of which
/// nobody knows. `addresses` are those of all forwarders; `away` says what becomes of the latter.
pub fn line(what: &str, failed: &[(usize, Errno)], addresses: &[String], away: &str) -> String {
    type Failed<'f> = Vec<&'f (usize, Errno)>;
    let (unknown, refused): (Failed<'_>, Failed<'_>) =
        failed.iter().partition(|(_, errno)| is_unknown(*errno));
    let named = |all: &[&(usize, Errno)]| {
        let one = |(index, errno): &&(usize, Errno)| {
            let address = addresses.get(*index).map_or("", String::as_str);
            format!("forwarder {index} ({address}): {}", why(*errno))
        };
        all.iter().map(one).collect::<Vec<_>>().join("; ")
    };
    let mut said = Vec::new();
    if let Some((_, errno)) = refused.first() {
        said.push(format!(
            "{what} were not changed, refused by {}; {}",
            named(&refused),
            advice(*errno)
        ));
    }
    if !unknown.is_empty() {
        said.push(format!(
            "{what} may be the old ones at {}; {away}",
            named(&unknown)
        ));
    }
    said.join("; ")
}

/// Whether the change may have been made all the same.
fn is_unknown(errno: Errno) -> bool {
    let gone = [
        Errno::TIMEDOUT,
        Errno::IO,
        Errno::CONNREFUSED,
        Errno::NOTCONN,
    ];
    gone.contains(&errno)
}

fn advice(errno: Errno) -> &'static str {
    match errno {
        Errno::NOSPC | Errno::DQUOT => {
            "make room in the exported directory, whose .tidegate keeps them, and set them again; \
             with --temporary nothing is kept"
        }
        Errno::ROFS => "the exported directory, whose .tidegate keeps them, can only be read",
        Errno::ACCES => {
            "the file system does not let the forwarder write .tidegate in the exported directory, \
             where a file may be immutable; its log names the file"
        }
        Errno::PERM => "only the forwarder's user, root and operators may change them",
        Errno::BUSY => "others are being set; try again later",
        _ => "its log says why",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_from_silence() {
        let addresses = ["unix:/a".to_owned(), "unix:/b".to_owned()];
        let line = |failed: &[(usize, Errno)]| line("the shares", failed, &addresses, "set again");
        let full = line(&[(1, Errno::NOSPC)]);
        assert!(
            full.contains("refused by forwarder 1 (unix:/b): No space left"),
            "{full}"
        );
        assert!(
            full.contains("make room") && !full.contains("may be"),
            "{full}"
        );
        let immutable = line(&[(1, Errno::ACCES)]);
        assert!(
            immutable.contains("may be immutable") && !immutable.contains("only the forwarder's"),
            "{immutable}"
        );
        let read_only = line(&[(0, Errno::ROFS)]);
        assert!(read_only.contains("can only be read"), "{read_only}");
        let silent = line(&[(0, Errno::TIMEDOUT)]);
        assert!(
            silent.contains("may be the old ones at forwarder 0"),
            "{silent}"
        );
        assert!(!silent.contains("refused"), "{silent}");
        let both = line(&[(0, Errno::TIMEDOUT), (1, Errno::INVAL)]);
        assert!(
            both.contains("its log says why; the shares may be"),
            "{both}"
        );
    }
}
