//! Mounts through `fusermount3`, the setuid program of libfuse: it mounts, and passes the open
//! device back through a socket.

use super::MountError;
use rustix::fd::OwnedFd;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = "fusermount3";

/// Whether the program can be found.
pub(super) fn is_there() -> bool {
    Command::new(PROGRAM)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}

/// Mounts on `path` and returns the open device.
pub(super) fn mount(path: &Path, options: &str) -> Result<OwnedFd, MountError> {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(MountError::Device)?;
    let output = Command::new(PROGRAM)
        .arg("-o")
        .arg(options)
        .arg("--")
        .arg(path)
        // As its standard input the socket reaches this child only, with no moment in which
        // another child of this process could inherit it.
        .stdin(Stdio::from(theirs))
        .env("_FUSE_COMMFD", "0")
        .output()
        .map_err(MountError::NoFusermount)?;
    if !output.status.success() {
        return Err(MountError::Fusermount(advised(complaint(&output))));
    }
    receive(&ours)?.ok_or_else(|| MountError::Fusermount("passed no device back".into()))
}

/// Unmounts; `lazy` also while files are open.
pub(super) fn unmount(path: &Path, lazy: bool) -> Result<(), MountError> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let output = command
        .arg("--")
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .map_err(MountError::NoFusermount)?;
    if output.status.success() {
        Ok(())
    } else {
        Err(MountError::Fusermount(complaint(&output)))
    }
}

fn receive(socket: &OwnedFd) -> Result<Option<OwnedFd>, MountError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )
    .map_err(MountError::Device)?;
    let device = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut passed) => passed.next(),
        _ => None,
    });
    Ok(device)
}

/// What the program said, without its own name.
fn complaint(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim();
    let said = said.strip_prefix("fusermount3: ").unwrap_or(said);
    if said.is_empty() {
        output.status.to_string()
    } else {
        said.replace('\n', "; ")
    }
}

/// What the program said of a mount that it refused, with what to do about it: it knows nothing of
/// containers, where no user can load a module, nor it itself may have root's rights.
fn advised(complaint: String) -> String {
    let advice = if complaint.contains("fuse device not found") {
        "is the fuse kernel module loaded, and /dev/fuse passed to this container? `tidegate up \
         --no-mount` starts forwarders alone, for programs that link the client library"
    } else if complaint.contains("mount failed: Operation not permitted") {
        "it has no rights of root here (no_new_privs, or it is not set-user-ID in this user \
         namespace): start the container with the right to mount, as with --cap-add SYS_ADMIN, or \
         be root of its user namespace"
    } else {
        return complaint;
    };
    format!("{complaint}; {advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_in_containers_say_what_to_do() {
        let said = |text: &str| advised(text.to_owned());
        let missing = said("fuse device not found, try 'modprobe fuse' first");
        assert!(missing.contains("passed to this container"), "{missing}");
        let bound = said("mount failed: Operation not permitted");
        assert!(bound.contains("SYS_ADMIN"), "{bound}");
        let other = "user has no write access to mountpoint /mnt";
        assert_eq!(said(other), other);
    }

    #[test]
    fn the_device_comes_through_the_socket() {
        let path = std::env::temp_dir().join(format!("tidegate-fusermount-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a mount point");
        match mount(&path, "fsname=tidegate-test,subtype=tidegate") {
            Ok(device) => {
                let mut init = [0; 8192 + (1 << 20)];
                let len = rustix::io::read(&device, &mut init).expect("the first message");
                assert!(
                    len >= 40 && init[4] == 26,
                    "{:?} is no INIT",
                    &init[..len.min(40)]
                );
                drop(device);
                unmount(&path, false).expect("unmounted");
            }
            Err(error) if std::env::var_os("CI").is_some_and(|ci| ci == "true") => {
                panic!("no mount: {error}");
            }
            Err(error) => println!("SKIP: {error}"),
        }
        let refused = mount(&path.join("missing"), "fsname=x").expect_err("no such directory");
        assert!(!refused.to_string().is_empty(), "{refused}");
        std::fs::remove_dir(&path).expect("an empty mount point");
    }
}
