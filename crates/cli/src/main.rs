//! The program `tidegate`.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidegate_cli::main(tidegate_cli::perform)
}
