//! The programs under test.

use std::path::PathBuf;

/// The laboratory.
pub fn lab() -> PathBuf {
    env!("CARGO_BIN_EXE_tidegate-lab").into()
}

/// `tidegate`, which the laboratory finds beside itself.
pub fn tidegate() -> PathBuf {
    let program = lab().with_file_name("tidegate");
    assert!(
        program.is_file(),
        "{} is missing, for cargo builds it for its own tests only: run `cargo build -p \
         tidegate-cli`, or all tests",
        program.display()
    );
    program
}
