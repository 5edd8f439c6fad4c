//! On whose behalf data is moved: user, groups and application of the one who opened the file.

use crate::mount::Mount;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use tidegate_client::app_id;

#[test]
fn the_application_is_told_from_the_opener_s_environment() {
    let Some(mount) = Mount::new("app") else {
        return;
    };
    fs::write(mount.path("file"), b"bytes").expect("written");
    for (variable, value, name) in [
        ("TIDEGATE_APP", "climate", "climate"),
        ("PBS_JOBID", "12.head", "pbs-12.head"),
    ] {
        mount.local.data_calls.lock().unwrap().clear();
        // The shell opens the file for `cat`, before it becomes another program.
        let mut shell = Command::new("sh");
        shell
            .arg("-c")
            .arg("exec cat < \"$0\"")
            .arg(mount.path("file"));
        shell
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env(variable, value);
        assert!(shell.output().expect("sh").status.success());
        let calls = mount.local.data_calls.lock().unwrap();
        assert!(
            !calls.is_empty() && calls.iter().all(|(app, _)| *app == app_id(name)),
            "{name}"
        );
    }
}

#[test]
fn a_mount_of_root_passes_on_users_and_groups() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: only root's mounts pass callers on");
        return;
    }
    let Some(mount) = Mount::new("caller") else {
        return;
    };
    fs::write(mount.path("file"), b"bytes").expect("written");
    fs::set_permissions(mount.path("file"), fs::Permissions::from_mode(0o644)).expect("chmod");
    mount.local.data_calls.lock().unwrap().clear();
    let output = Command::new("cat")
        .arg(mount.path("file"))
        .uid(4321)
        .gid(1234)
        .output();
    assert_eq!(output.expect("cat").stdout, b"bytes");
    let calls = mount.local.data_calls.lock().unwrap();
    let (_, caller) = calls.first().expect("a read");
    let caller = caller.as_ref().expect("passed on");
    assert_eq!((caller.uid, caller.gid), (4321, 1234));
    drop(calls);
    // The kernel itself checks modes first.
    fs::set_permissions(mount.path("file"), fs::Permissions::from_mode(0o600)).expect("chmod");
    let output = Command::new("cat")
        .arg(mount.path("file"))
        .uid(4321)
        .gid(1234)
        .output();
    assert!(!output.expect("cat").status.success());
}

#[test]
fn a_program_that_may_only_be_executed_runs() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: only root's mounts pass callers on");
        return;
    }
    let Some(mount) = Mount::new("execute") else {
        return;
    };
    let program = mount.path("program");
    fs::copy("/bin/true", &program).expect("copied");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o111)).expect("chmod");
    mount.local.rights.lock().unwrap().clear();
    let mut run = Command::new(&program);
    let status = loop {
        match run.uid(4321).gid(1234).status() {
            // A child of another test has the file open for writing until it runs its own program.
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            status => break status.expect("it may be executed"),
        }
    };
    assert!(status.success());
    let rights = mount.local.rights.lock().unwrap();
    assert!(
        !rights.is_empty() && rights.iter().all(|asked| *asked == (false, false)),
        "{rights:?}"
    );
}
