//! The first exchange with the kernel: which protocol version, which capabilities, which sizes.

use super::abi::{self, init};
use super::connection::Connection;
use super::decode::{Body, decode};
use super::{MountError, MountSettings};
use rustix::io::Errno;
use zerocopy::IntoBytes;

/// Bytes that a read or write request may carry: what `MAX_PAGES` of 256 allows with 4 KiB pages,
/// and the kernel's own default limit.
pub(super) const WRITE_MAX: u32 = 1 << 20;

/// The kernel takes one page for the least.
const WRITE_MIN: u32 = 4096;

/// Requests that the kernel sends without a process waiting for each (read-ahead, write-back,
/// asynchronous I/O). Above it, or above `CONGESTED` for read-ahead, it holds back by itself.
const BACKGROUND_MAX: u16 = 256;
const CONGESTED: u16 = 192;

/// Capabilities used when the kernel offers them. Left out on purpose: the write-back cache (other
/// nodes must see each write), atomic O_TRUNC (a setattr says the same), DONT_MASK (without access
/// control lists the kernel applies the umask rightly), readdirplus unless the file system wants
/// it.
const WANTED: u64 = init::ASYNC_READ
    | init::POSIX_LOCKS
    | init::FLOCK_LOCKS
    | init::BIG_WRITES
    | init::ASYNC_DIO
    | init::PARALLEL_DIROPS
    | init::MAX_PAGES
    | init::INIT_EXT
    | init::DIRECT_IO_ALLOW_MMAP;

/// Without these locks would be right on one node only, or writes come in pages.
const REQUIRED: u64 = init::POSIX_LOCKS | init::FLOCK_LOCKS | init::BIG_WRITES | init::MAX_PAGES;

/// What this mount and its kernel agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated {
    /// Protocol version, major and minor.
    pub protocol: (u32, u32),
    /// Files that pass by the page cache can be mapped shared (Linux 6.6 on).
    pub direct_mmap: bool,
    /// Directory listings contain attributes.
    pub readdirplus: bool,
}

/// Reads the kernel's first message and answers it.
pub(super) fn negotiate(
    connection: &Connection,
    settings: &MountSettings,
) -> Result<Negotiated, MountError> {
    let mut buffer = vec![0; WRITE_MAX as usize + 4096];
    loop {
        let len = connection.read(&mut buffer).map_err(MountError::Device)?;
        let message = decode(&buffer[..len.ok_or(MountError::Ended)?]);
        let (unique, kernel) = match message {
            Ok(message) => match message.body {
                Body::Init(kernel) => (message.header.unique, kernel),
                _ => return Err(MountError::Protocol("the first message is no INIT".into())),
            },
            Err(malformed) => return Err(MountError::Protocol(malformed.to_string())),
        };
        if kernel.major > abi::MAJOR {
            // The kernel asks again in the version that it is answered with.
            let ours = abi::InitOut {
                major: abi::MAJOR,
                minor: abi::MINOR_MAX,
                ..Default::default()
            };
            connection.reply(unique, &[ours.as_bytes().into()]);
            continue;
        }
        let flags2 = buffer_flags2(&buffer[..len.unwrap_or(0)]);
        let answer = answer(&kernel, flags2, settings);
        return match answer {
            Ok((ours, negotiated)) => {
                connection.reply(unique, &[ours.as_bytes().into()]);
                Ok(negotiated)
            }
            Err(refusal) => {
                connection.reply_error(unique, Errno::PROTO);
                Err(MountError::Protocol(refusal))
            }
        };
    }
}

/// The second word of capabilities, which follows the fields that every kernel sends.
fn buffer_flags2(message: &[u8]) -> u32 {
    let at = size_of::<abi::InHeader>() + size_of::<abi::InitIn>();
    match message.get(at..at + 4) {
        Some(bytes) => {
            let mut flags2 = 0_u32;
            flags2.as_mut_bytes().copy_from_slice(bytes);
            flags2
        }
        None => 0,
    }
}

fn answer(
    kernel: &abi::InitIn,
    flags2: u32,
    settings: &MountSettings,
) -> Result<(abi::InitOut, Negotiated), String> {
    let abi::InitIn { major, minor, .. } = *kernel;
    if major < abi::MAJOR || minor < abi::MINOR_MIN {
        return Err(format!(
            "the kernel speaks FUSE {major}.{minor}, older than 7.31 (Linux 5.10)"
        ));
    }
    let mut offered = u64::from(kernel.flags);
    if offered & init::INIT_EXT != 0 {
        offered |= u64::from(flags2) << 32;
    }
    let missing = REQUIRED & !offered;
    if missing != 0 {
        return Err(format!("the kernel lacks FUSE capabilities {missing:#x}"));
    }
    let mut wanted = WANTED;
    if settings.readdirplus {
        wanted |= init::DO_READDIRPLUS | init::READDIRPLUS_AUTO;
    }
    let agreed = wanted & offered;
    let negotiated = Negotiated {
        protocol: (abi::MAJOR, minor.min(abi::MINOR_MAX)),
        direct_mmap: agreed & init::DIRECT_IO_ALLOW_MMAP != 0,
        readdirplus: agreed & init::DO_READDIRPLUS != 0,
    };
    let ours = abi::InitOut {
        major: abi::MAJOR,
        minor: negotiated.protocol.1,
        readahead_max: kernel.readahead_max,
        flags: agreed as u32,
        flags2: (agreed >> 32) as u32,
        background_max: BACKGROUND_MAX,
        congestion_threshold: CONGESTED,
        write_max: settings.write_max.clamp(WRITE_MIN, WRITE_MAX),
        time_granularity: 1,
        pages_max: (WRITE_MAX as usize / rustix::param::page_size()).max(1) as u16,
        ..Default::default()
    };
    Ok((ours, negotiated))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> MountSettings {
        MountSettings::new("/")
    }

    fn kernel(minor: u32) -> abi::InitIn {
        abi::InitIn {
            major: 7,
            minor,
            readahead_max: 1 << 17,
            flags: u32::MAX,
        }
    }

    #[test]
    fn the_smaller_minor_version_is_spoken() {
        assert_eq!(
            answer(&kernel(99), u32::MAX, &plain()).unwrap().1.protocol,
            (7, abi::MINOR_MAX)
        );
        assert_eq!(
            answer(&kernel(33), u32::MAX, &plain()).unwrap().1.protocol,
            (7, 33)
        );
        assert!(answer(&kernel(30), u32::MAX, &plain()).is_err());
    }

    #[test]
    fn only_what_is_offered_and_wanted_is_agreed_on() {
        let plus = MountSettings {
            readdirplus: true,
            ..plain()
        };
        let (ours, negotiated) = answer(&kernel(45), u32::MAX, &plus).unwrap();
        assert!(negotiated.direct_mmap && negotiated.readdirplus);
        assert_eq!(ours.flags2, (init::DIRECT_IO_ALLOW_MMAP >> 32) as u32);
        assert_eq!(ours.flags & (1 << 16), 0, "no write-back cache");
        // Without INIT_EXT the second word means nothing.
        let old = abi::InitIn {
            flags: !(init::INIT_EXT as u32),
            ..kernel(35)
        };
        let (ours, negotiated) = answer(&old, u32::MAX, &plain()).unwrap();
        assert!(!negotiated.direct_mmap && !negotiated.readdirplus);
        assert_eq!(ours.flags2, 0);
    }

    #[test]
    fn a_kernel_without_remote_locks_is_refused() {
        let old = abi::InitIn {
            flags: init::BIG_WRITES as u32,
            ..kernel(45)
        };
        assert!(answer(&old, 0, &plain()).unwrap_err().contains("lacks"));
    }
}
