//! How many forwarders a directory had before, and how they divided its files: the next `up` takes
//! the same, unless its user says something else, which is refused in words.

use super::nested;
use crate::fail::Fail;
use rustix::fs::OFlags;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use tidegate_server::seats::is_served;

/// The number where there were none before.
pub const FORWARDERS: u16 = 4;

/// What the forwarders of a directory have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// How many there are.
    pub forwarders: u16,
    /// Bytes of a file that one serves before the next has its turn.
    pub stripe: u64,
}

/// Fails if forwarders are to have another layout than those before.
pub fn check(export: &Path, state: &Path, wanted: Layout) -> Result<(), Fail> {
    let Some(before) = recorded(export).filter(|before| *before != wanted) else {
        return Ok(());
    };
    if is_served(export) {
        return Err(nested::served(export, state, ""));
    }
    let (shown, Layout { forwarders, stripe }) = (export.display(), before);
    Err(Fail::usage(format!(
        "{shown} had --forwarders {forwarders} --stripe {stripe} before: start it with these, or \
         without both flags; to change them, make sure that no forwarder serves it, on any node, \
         and remove {shown}/.tidegate/layout"
    )))
}

/// Bytes of the longest record that is read.
const RECORD_MAX: u64 = 4096;

/// What an earlier set has left. The directory may be another user's, so nothing but a plain file
/// is read; the forwarders look at whose it is.
pub fn recorded(export: &Path) -> Option<Layout> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut options = File::options();
    options.read(true).custom_flags(flags.bits() as i32);
    let file = options.open(export.join(".tidegate/layout")).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let text = std::io::read_to_string(file.take(RECORD_MAX)).ok()?;
    let table: toml::Table = toml::from_str(&text).ok()?;
    let number = |key: &str| u64::try_from(table.get(key)?.as_integer()?).ok();
    let forwarders = u16::try_from(number("seats")?).ok()?;
    Some(Layout {
        forwarders: (1..=64).contains(&forwarders).then_some(forwarders)?,
        stripe: number("stripe")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_layout_than_before_is_refused() {
        let export = format!("tidegate-layout-{}", std::process::id());
        let export = std::env::temp_dir().join(export);
        std::fs::create_dir_all(export.join(".tidegate")).expect("room");
        let of = |forwarders, stripe| Layout { forwarders, stripe };
        let check = |wanted| check(&export, Path::new("/x"), wanted);
        assert_eq!(recorded(&export), None);
        check(of(4, 4096)).expect("there is none before");
        let layout = export.join(".tidegate/layout");
        std::fs::write(&layout, "seats = 2\nstripe = 65536\n").expect("room");
        assert_eq!(recorded(&export), Some(of(2, 65536)));
        check(of(2, 65536)).expect("as before");
        for wanted in [of(4, 65536), of(2, 4096)] {
            let refused = check(wanted).expect_err("it differs").message;
            let before = "had --forwarders 2 --stripe 65536 before";
            assert!(refused.contains(before), "{refused}");
        }
        std::fs::write(&layout, "nothing that a forwarder writes").expect("room");
        assert_eq!(recorded(&export), None);
        // What somebody else may have put there.
        std::fs::remove_file(&layout).expect("ours");
        let kind = rustix::fs::FileType::Fifo;
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, &layout, kind, mode, 0).expect("room");
        assert_eq!(recorded(&export), None);
        std::fs::remove_file(&layout).expect("ours");
        std::os::unix::fs::symlink("/dev/zero", &layout).expect("room");
        assert_eq!(recorded(&export), None);
        std::fs::remove_dir_all(&export).expect("ours");
    }
}
