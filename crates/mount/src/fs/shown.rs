//! A process as the kernel shows it, for programs that hand in any texts.

use super::application::application_of;
use super::process;
use tidegate_client::Application;

/// What the kernel shows of a process, which shapes most of it itself.
pub struct Shown<'a> {
    /// The text of `/proc/PID/status`.
    pub status: &'a str,
    /// The text of `/proc/PID/stat`.
    pub stat: &'a str,
    /// The bytes of `/proc/PID/environ`.
    pub environment: &'a [u8],
    /// The text of `/proc/PID/cgroup`.
    pub control_groups: &'a str,
}

impl Shown<'_> {
    /// The groups that a mount of root passes on.
    pub fn groups(&self) -> Vec<u32> {
        process::groups(self.status)
    }

    /// The application to which a mount counts the process; None if the process is not there.
    pub fn application(&self, uid: u32) -> Option<Application> {
        let session = process::parse_stat(self.stat, 1)?.session();
        let control_groups = || self.control_groups.to_owned();
        let session = format!("uid-{uid}.sid-{session}");
        Some(application_of(
            self.environment,
            control_groups,
            session,
            None,
        ))
    }
}
