//! Why a command failed: one line, and an exit code that tells wrong use from other failures.

/// The failure of a command.
#[derive(Debug)]
pub struct Fail {
    /// 2: usage or configuration; 1: everything else.
    pub code: u8,
    /// What is wrong, where, and what to do about it.
    pub message: String,
}

impl Fail {
    /// The command or the configuration is wrong.
    pub fn usage(message: impl ToString) -> Fail {
        Fail {
            code: 2,
            message: message.to_string(),
        }
    }

    /// Something failed at run time.
    pub fn runtime(message: impl ToString) -> Fail {
        Fail {
            code: 1,
            message: message.to_string(),
        }
    }
}

impl From<tidegate_server::config::ConfigError> for Fail {
    fn from(error: tidegate_server::config::ConfigError) -> Fail {
        Fail::usage(error)
    }
}

impl From<tidegate_client::ConnectError> for Fail {
    /// A command without forwarders can only tell the user what to correct, so this counts as
    /// usage.
    fn from(error: tidegate_client::ConnectError) -> Fail {
        match error {
            tidegate_client::ConnectError::Resources(_) => Fail::runtime(error),
            _ => Fail::usage(error),
        }
    }
}
