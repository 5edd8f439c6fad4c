//! What munge's errors are taken for. A munged of their own have the end-to-end tests.

use super::*;

#[test]
fn without_munged_the_error_says_so() {
    let Ok(munge) = Munge::load() else {
        eprintln!("skipped: no libmunge.so.2 here");
        return;
    };
    let place = std::env::temp_dir().join(format!("tidegate-munge-{}", std::process::id()));
    let is_daemon = |error: &MungeError| matches!(error, MungeError::Daemon(_));
    let encoded = munge.encode(Some(&place), 0, b"bytes");
    assert!(encoded.as_ref().is_err_and(is_daemon), "{encoded:?}");
    let decoded = munge.decode(Some(&place), "MUNGE:AwQFAAB=:");
    assert!(decoded.as_ref().is_err_and(is_daemon), "{decoded:?}");
    assert!(
        encoded
            .expect_err("as before")
            .to_string()
            .contains("does it run on this node?")
    );
}

#[test]
fn a_library_that_is_none_is_named() {
    // SAFETY: the name ends with a NUL; nothing is loaded.
    let none = unsafe { libc::dlopen(c"libmunge.so.nonexistent".as_ptr(), libc::RTLD_NOW) };
    assert!(none.is_null());
    let error = MungeError::Library(last_error()).to_string();
    assert!(
        error.contains("libmunge.so.nonexistent") && error.contains("libmunge2"),
        "{error}"
    );
}
