//! What `where` says of second copies: only one that has all of the file counts.

use super::*;

#[test]
fn where_names_a_second_copy_apart_while_it_lacks_what_was_written_since() {
    let scratch = Scratch::new();
    let servers = Servers::new(scratch.path(), &[2, 3]);
    let running = servers.start();
    let held = || running.residency(b"f").remove(0);
    let handle = put_synced(&running, b"f", &content(1, 100_000));
    let both = held().tiers;
    assert_eq!(both.len(), 2, "{both:?}");
    assert_eq!(held().stale_tiers, [""; 0]);
    assert_eq!(held().durability.as_deref(), Some("replica"));
    running.write(handle, 10, b"since").expect("write");
    assert_eq!(held().tiers, both);
    assert_eq!(held().stale_tiers, both[1..]);
    running.client.fsync(handle, false).expect("fsync");
    assert_eq!(held().tiers, both);
    assert_eq!(held().stale_tiers, [""; 0]);
    running.client.release(handle).expect("close");
    running.instance.stop();
}
