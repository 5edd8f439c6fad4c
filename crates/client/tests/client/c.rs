//! The C header is what the code says, and a C program that uses all of it compiles, links and
//! runs.

use crate::fake::Fake;
use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};
use tidegate_client::capi::{tidegate_attr, tidegate_entry, tidegate_piece};

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

const ABOUT: &str = "\
/* Tidegate's client library for C: files behind forwarders, by path or inode.
 *
 * Functions return 0, a count, or a negative errno; tidegate_error_text() says more. Handles may be
 * used by many threads. A fork child must not use its parent's: there every call ends with -EIO.
 * Compile with `pkg-config --cflags --libs tidegate_client` (docs/client.md).
 *
 * Made from crates/client/src/capi by a test; do not edit.
 */";

#[test]
fn the_header_is_what_the_code_says() {
    let path = Path::new(CRATE).join("include/tidegate.h");
    let generated = header();
    if env::var_os("TIDEGATE_WRITE_HEADER").is_some() {
        fs::write(&path, &generated).expect("the header can be written");
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == generated,
        "include/tidegate.h is not what the code says; write it with \
         `TIDEGATE_WRITE_HEADER=1 cargo test -p tidegate-client header`"
    );
}

#[test]
fn a_c_program_can_use_all_of_it() {
    let fake = Fake::start("c");
    fake.set_room(" world".len() + 3);
    let program = compile(fake.folder());
    let output = Command::new(program)
        .arg(fake.address())
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}: {said}", output.status);
    fake.with(|state| {
        for kind in ["create", "write", "read", "append", "open", "close", "bye"] {
            assert!(state.seen.contains_key(kind), "the program made no {kind}");
        }
    });
}

fn header() -> String {
    let mut config = cbindgen::Config {
        language: cbindgen::Language::C,
        cpp_compat: true,
        include_guard: Some("TIDEGATE_H".to_string()),
        header: Some(ABOUT.to_string()),
        no_includes: true,
        sys_includes: vec!["stddef.h".to_string(), "stdint.h".to_string()],
        usize_is_size_t: true,
        style: cbindgen::Style::Both,
        documentation_style: cbindgen::DocumentationStyle::C,
        line_length: 100,
        tab_width: 4,
        ..cbindgen::Config::default()
    };
    config.function.sort_by = Some(cbindgen::SortKey::None);
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in [
        "capi.rs",
        "capi/error.rs",
        "capi/files.rs",
        "capi/lists.rs",
        "capi/paths.rs",
    ] {
        builder = builder.with_src(Path::new(CRATE).join("src").join(file));
    }
    let mut header = Vec::new();
    builder
        .generate()
        .expect("the C ABI can be written as C")
        .write(&mut header);
    String::from_utf8(header).expect("the header is text")
}

/// Compiles `uses.c` against the header, with the sizes that Rust sees, and links the static
/// library.
fn compile(folder: &Path) -> PathBuf {
    let program = folder.join("uses");
    let expected = [
        ("ATTR_SIZE", size_of::<tidegate_attr>()),
        ("ATTR_MODE_AT", offset_of!(tidegate_attr, mode)),
        ("PIECE_SIZE", size_of::<tidegate_piece>()),
        ("PIECE_BUFFER_AT", offset_of!(tidegate_piece, buffer)),
        ("ENTRY_SIZE", size_of::<tidegate_entry>()),
        ("ENTRY_NAME_AT", offset_of!(tidegate_entry, name)),
    ];
    let output = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(Path::new(CRATE).join("include"))
        .args(expected.map(|(name, value)| format!("-D{name}={value}")))
        .arg(Path::new(CRATE).join("tests/client/uses.c"))
        .arg(static_library())
        .args(["-lpthread", "-ldl", "-lm", "-lgcc_s", "-o"])
        .arg(&program)
        .output()
        .expect("cc is needed");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "cc: {said}");
    program
}

/// The static library that was built for this test: the newest beside it.
fn static_library() -> PathBuf {
    let test = env::current_exe().expect("a test knows itself");
    let folder = test.parent().expect("it lies in a folder");
    let entries = fs::read_dir(folder).expect("the folder can be read");
    let libraries = entries.filter_map(|entry| {
        let path = entry.ok()?.path();
        let name = path.file_name()?.to_str()?;
        let is_ours = name.starts_with("libtidegate_client") && name.ends_with(".a");
        let made = path.metadata().ok()?.modified().ok()?;
        is_ours.then_some((made, path))
    });
    libraries.max().expect("cargo builds the static library").1
}
