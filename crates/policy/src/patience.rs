//! How long somebody is waited for, and how often it is looked whether that is over.

use std::time::Duration;

/// For so long after its start a server lets clients of the last run take back what they had: a
/// client that has lost its server tries again every few seconds, and its node may be starting.
pub const CLIENTS_RETURN: Duration = Duration::from_secs(90);
/// For so long in all a client that has come back tries to open its files without a name, where
/// that fails with an error that may pass: once it is back, the server keeps them no longer.
pub const NAMELESS_FILES: Duration = Duration::from_secs(5);
/// A client whose kernel keeps pages for a data server that is away is waited for so long at most:
/// as long as a node may take to boot. Then it is fenced, for others wait for the file.
pub const CLIENT_OF_AWAY_NODE: Duration = Duration::from_secs(600);
/// A start waits for so long for a store of records that is held, or does not answer: longer than a
/// hold lasts whose holder has died.
pub const RECORDS_STORE: Duration = Duration::from_secs(30);
/// What another node has written to the PFS is to be seen here within this time: longer than
/// clients of a PFS usually believe the length of a file. Else the copy has failed, and is tried
/// again.
pub const SEEN_ON_PFS: Duration = Duration::from_secs(5);

/// A start waits for so long for data servers that do not answer: nodes of a cluster start
/// together. It goes on without those that are not there then.
pub const DATA_SERVERS_AT_START: Duration = Duration::from_secs(10);
/// A request waits for so long for a data server that has just gone: it may only be started anew.
/// After that nobody is waited for; whoever asks has other things to do until it is back.
pub const DATA_SERVER_GONE: Duration = Duration::from_secs(3);
/// Between two tries to reach a data server: a small part of what a request waits for it, and
/// seldom enough for a node that is away for days.
pub const DATA_SERVER_TRY: Duration = Duration::from_millis(200);
/// A copy that nobody waits for waits so long for a network that is away, and is made later: it
/// holds up whoever wants to copy the file elsewhere.
pub const COPIES: Duration = Duration::from_secs(2);
/// Between two looks at which data servers are there, and at the space that they have.
pub const DATA_SERVERS_LOOK: Duration = Duration::from_secs(1);
/// A server that has just started does not start anew for a data server before this: a node that
/// comes and goes makes nobody start more often.
pub const START_ANEW_FIRST: Duration = Duration::from_secs(5);
/// A start anew that was ordered, and could not be, is ordered again after this.
pub const START_ANEW_AGAIN: Duration = Duration::from_secs(10);

/// Where another metadata server takes over by itself a hold on the records ends after this:
/// programs wait for that. It is longer than an election in etcd takes, and than the store's
/// patience.
pub const STANDBY_LEASE: Duration = Duration::from_secs(8);
/// There a start waits for so long for a data server that does not answer: mounts wait for it. One
/// that comes later is taken in then.
pub const STANDBY_DATA_SERVERS: Duration = Duration::from_secs(3);

/// A file that could not move to another node is not asked to for so long: each try may copy all of
/// it.
pub const STAYS_FOR: Duration = Duration::from_secs(10);
