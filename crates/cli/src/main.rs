//! The program `tidegate`, and under that name `mount.tidegate`.

use std::process::ExitCode;
use tidegate_cli::mount_helper;

fn main() -> ExitCode {
    if mount_helper::is_meant() {
        return mount_helper::main();
    }
    tidegate_cli::main(tidegate_cli::perform)
}
