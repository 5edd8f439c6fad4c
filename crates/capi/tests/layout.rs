//! The header says what the code says: the C compiler checks every structure's size, the places of
//! its fields, and every constant, as Rust sees them.

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;
use tidegate_capi::*;

/// `_Static_assert` for a structure and each of its fields.
macro_rules! structure {
    ($into:expr, $name:ident { $($field:ident),* }) => {
        let name = stringify!($name);
        writeln!($into, "_Static_assert(sizeof({name}) == {}, \"{name}\");", size_of::<$name>())?;
        $(writeln!(
            $into,
            "_Static_assert(offsetof({name}, {0}) == {1}, \"{name}.{0}\");\n\
             _Static_assert(sizeof((({name} *)0)->{0}) == {2}, \"{name}.{0}\");",
            stringify!($field),
            offset_of!($name, $field),
            field_size(|value: &$name| size_of_val(&value.$field)),
        )?;)*
    };
}

/// The size of a field, from a structure that is all zero.
fn field_size<T>(of: impl Fn(&T) -> usize) -> usize {
    let zero = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: the structures of the ABI may be all zero.
    of(unsafe { zero.assume_init_ref() })
}

fn structures(text: &mut String) -> std::fmt::Result {
    structure!(
        text,
        tg_sched_request {
            size,
            id,
            app,
            file,
            offset,
            len,
            stamp_ns,
            epoch_seen,
            operation,
            operation_bytes,
            operation_bytes_max,
            deadline_ns,
            charged_elsewhere_ns,
            shuffle_us,
            direction,
            queue,
            flags,
            bytes_elsewhere,
            operations_elsewhere,
            away_ms,
            charged_here_ns,
            shuffle_max_us,
            shuffle_rank
        }
    );
    structure!(
        text,
        tg_sched_entry {
            id,
            app,
            file,
            offset,
            len,
            direction,
            queue
        }
    );
    structure!(
        text,
        tg_sched_statistics {
            size,
            arrived,
            rejected,
            batches,
            dispatched,
            completed,
            cancelled,
            held,
            queued,
            queued_peak,
            held_now,
            running
        }
    );
    structure!(
        text,
        tg_sched_callbacks {
            size,
            context,
            run,
            run_list,
            cancelled
        }
    );
    Ok(())
}

fn constants(text: &mut String) -> std::fmt::Result {
    for (name, value) in [
        ("DISPATCH", TG_SCHED_DISPATCH),
        ("WAIT", TG_SCHED_WAIT),
        ("IDLE", TG_SCHED_IDLE),
        ("READ", TG_SCHED_READ as i32),
        ("WRITE", TG_SCHED_WRITE as i32),
        ("ALONE", TG_SCHED_ALONE as i32),
        ("DRAIN", TG_SCHED_DRAIN),
        ("CANCEL", TG_SCHED_CANCEL),
    ] {
        writeln!(
            text,
            "_Static_assert(TG_SCHED_{name} == {value}, \"{name}\");"
        )?;
    }
    let version = env!("CARGO_PKG_VERSION");
    let mut parts = version.split('.');
    for part in ["MAJOR", "MINOR"] {
        let number = parts.next().unwrap_or_default();
        writeln!(
            text,
            "_Static_assert(TG_SCHED_VERSION_{part} == {number}, \"version\");"
        )?;
    }
    Ok(())
}

#[test]
fn the_header_is_what_the_code_says() {
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("layout.c");
    let mut text = "#include <tidegate_sched.h>\n".to_string();
    structures(&mut text).expect("strings take all");
    constants(&mut text).expect("strings take all");
    std::fs::write(&source, text).expect("it can be written");
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let output = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Werror", "-fsyntax-only", "-I"])
        .arg(include)
        .arg(source)
        .output()
        .expect("cc is needed: run tools/need test");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}
