//! Every decision Forebay takes, as pure functions and small state machines.
//!
//! Nothing here does I/O, starts a thread or reads a clock: time is an argument, in seconds as
//! `f64` (`now_s`), counted from any fixed origin that does not run backwards. The same code runs
//! in the servers and in the discrete-event twin.
//!
//! Sizes are bytes (`_bytes`), rates are bytes per second (`_bytes_per_s`). Papers are cited by
//! short name: *BBOS* (burst-buffer over-subscription, dissertation 2020 and IEEE Access 2023),
//! *ONFS* (DRAM, SSD and HDD in one namespace, 2017), *TRIO* (draining in the order the file system
//! likes, dissertation 2017).
//!
//! | question | module |
//! | --- | --- |
//! | Which application, which version? | [`series`] |
//! | Which batch job does a process belong to? | [`job`] |
//! | Which version is complete, which outdated, how large will a file be? | [`version`] |
//! | May a metadata server change the PFS, and when may a standby begin? | [`leadership`] |
//! | Does a holder answer, and what is left of one that comes back? | [`liveness`] |
//! | How long is somebody waited for who does not answer, or is to come back? | [`patience`] |
//! | What does fsync promise? | [`durability`] |
//! | Does the PFS answer? | [`health`] |
//! | Is it the PFS that the state was made for? | [`samepfs`] |
//! | Where does a new file go, and how much space is set aside? | [`placement`] |
//! | Where does a file go on when its tier is full? | [`spill`] |
//! | How much memory is borrowed, and when is some given back? | [`lending`] |
//! | Which node holds a new file? | [`holders`] |
//! | Where does a file go on when its node is full? | [`handover`] |
//! | How do files leave a node that is being emptied? | [`emptying`] |
//! | Where is a second copy, and when do two servers have a file? | [`replicas`] |
//! | Which lost copies are made again first, and how fast? | [`rereplication`] |
//! | Which drained versions are copied for restarts, and where is one read? | [`replicators`] |
//! | How much will be written? | [`forecast`] |
//! | When has a bandwidth been measured? | [`calibration`] |
//! | Who does I/O now? | [`schedule`], [`share`] |
//! | When, and how fast, is data demoted? | [`plan`], [`engine`], [`trigger`], [`throttle`] |
//! | How is a rate divided among nodes, and lent to them? | [`fairshare`], [`ratelease`] |
//! | What is demoted and evicted first, and what never comes in? | [`demotion`], one at a time among many: [`queue`], [`victims`] |
//! | When is what was changed in place flushed? | [`writeback`] |
//! | When does a version become visible? | [`publication`] |
//! | What is done about damage? | [`repair`] |
//! | When are objects at rest looked at, and how closely? | [`scrub`] |
//! | Which connection carries a request? | [`links`] |
//! | How many threads wait for the kernel's requests? | [`readers`] |
//! | Who may lock which bytes, and who waits for whom? | [`locks`] |
//! | How likely is an application to fail next? | [`mtbf`] |
//! | What is read before it is asked for? | [`ahead`], what programs read every so often: [`runs`] |
//! | What is put on record of all that, and for how long? | [`history`] |

pub mod ahead;
pub mod calibration;
pub mod demotion;
pub mod durability;
pub mod emptying;
pub mod engine;
pub mod fairshare;
pub mod forecast;
pub mod grouping;
pub mod handover;
pub mod health;
pub mod history;
pub mod holders;
pub mod job;
pub mod leadership;
pub mod lending;
pub mod limits;
pub mod links;
pub mod liveness;
pub mod locks;
pub mod mtbf;
mod named;
pub mod patience;
pub mod placement;
pub mod plan;
pub mod publication;
pub mod queue;
pub mod ratelease;
pub mod rates;
pub mod readers;
pub mod repair;
pub mod replicas;
pub mod replicators;
pub mod rereplication;
pub mod runs;
pub mod samepfs;
pub mod schedule;
pub mod scrub;
pub mod series;
pub mod share;
pub mod sizes;
pub mod spill;
#[cfg(test)]
mod testing;
pub mod throttle;
pub mod trigger;
pub mod version;
pub mod victims;
pub mod writeback;

pub use named::UnknownName;
