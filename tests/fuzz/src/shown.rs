//! What the kernel shows of mounts and processes, whose owners shape it; and what a mount or the
//! other end of a link answers: each is read or not, and what is read says itself again.

use crate::Draw;
use tidegate_client::wire::GROUPS_MAX;
use tidegate_client::{fuse_mounts_in, ticket_in};
use tidegate_mount::Shown;
use tidegate_server::backend::Backend;

pub(super) fn run(data: &[u8]) {
    let mut draw = Draw::new(data);
    match draw.u8() % 4 {
        0 => mounts(&String::from_utf8_lossy(draw.rest())),
        1 => process(&mut draw),
        2 => ticket(draw.rest()),
        _ => greeting(draw.rest()),
    }
}

fn mounts(text: &str) {
    let mounts = fuse_mounts_in(text);
    assert!(mounts.len() <= text.lines().count());
    let id = text.split(' ').next().unwrap_or_default();
    if let Some(backend) = Backend::in_mounts(text, id) {
        let kinds = [backend.is_fuse(), backend.is_gluster()];
        assert!(kinds != [false, true], "its mount is one of FUSE");
    }
}

fn process(draw: &mut Draw<'_>) {
    let mut text = || {
        let len = draw.u16() % 4096;
        draw.bytes(len.into())
    };
    let [status, stat, control_groups] = [text(), text(), text()].map(String::from_utf8_lossy);
    let shown = Shown {
        status: &status,
        stat: &stat,
        environment: draw.rest(),
        control_groups: &control_groups,
    };
    assert!(shown.groups().len() <= GROUPS_MAX);
    if let Some(application) = shown.application(1000) {
        assert!(!application.name.is_empty(), "somebody has no name");
        // Nothing that is read is read twice.
        let told = [&application.name, &application.job, &application.project];
        let most = 3 * (shown.environment.len() + control_groups.len()) + 64;
        assert!(told.iter().all(|it| it.len() <= most));
    }
}

fn ticket(bytes: &[u8]) {
    if let Some(again) = ticket_in(bytes) {
        assert_eq!(ticket_in(&again), Some(again));
    }
}

fn greeting(bytes: &[u8]) {
    // Whoever greets says how long the greeting is.
    let mut bytes = bytes.to_vec();
    let len = bytes.len() as u16;
    if let Some(head) = bytes.first_chunk_mut::<2>() {
        *head = len.to_le_bytes();
    }
    if let Some(again) = tidegate_fabric::greeting_in(&bytes) {
        assert_eq!(again, bytes);
    }
}
