//! Two metadata servers without tiers, of which one stands by, with data servers and etcd.

use std::ffi::OsStr;
use std::path::PathBuf;

use rustix::process::{Signal, kill_process};

use super::{Fleet, PORT, Running};
use crate::process::wait_bounded;
use crate::storeserver::{StoreKind, StoreServer};
use crate::wait::{LONG, wait_until};

/// Ids of the two in the cluster's file.
const IDS: [&str; 2] = ["1", "100"];

pub(super) fn log_of(which: usize) -> String {
    format!("metadata{which}.log")
}

impl Fleet {
    /// So many nodes with a mount and a data server each, and two nodes with a metadata server
    /// each. Data servers run; no metadata server does, and nothing is mounted.
    #[track_caller]
    pub fn with_standby(nodes: usize, cluster: &str, config: &str) -> Fleet {
        let mut fleet = Fleet::prepare(nodes, nodes + 3, "", config);
        fleet.metadata = IDS.map(|_| Running(None)).into();
        let address = fleet.nodes[fleet.metadata_node(1)].socket_address(PORT);
        let (base, id) = (fleet.base.display(), IDS[1]);
        let mut sections = format!(
            "[[server]]\nid = {id}\nroles = [\"metadata\"]\naddresses = [\"{address}\"]\n\
             state = \"{base}/standby\"\n"
        );
        for node in 1..=nodes {
            sections += &fleet.data_server_section(node);
        }
        fleet.config = sections + &fleet.config;
        let server = StoreServer::start_on(StoreKind::Etcd, fleet.store_node(), &[]);
        fleet.cluster = format!("store = \"{}\"\n{cluster}", server.url(""));
        fleet.store = Some(server);
        fleet.rewrite_config();
        for node in 1..=nodes {
            std::fs::create_dir(fleet.flash(node)).expect("mkdir");
            fleet.start_data(node, "this boot");
        }
        fleet
    }

    /// The node of the first metadata server, or the second.
    pub fn metadata_node(&self, which: usize) -> usize {
        match which {
            0 => 0,
            _ => self.nodes.count() - 2,
        }
    }

    /// The state folder of a metadata server.
    pub fn metadata_state(&self, which: usize) -> PathBuf {
        self.base.join(["state", "standby"][which])
    }

    /// What a metadata server has said.
    pub fn metadata_log(&self, which: usize) -> String {
        self.log(&log_of(which))
    }

    /// Starts a metadata server, and waits until it serves or stands by. Each has a node of its
    /// own, that was started at a time of its own.
    #[track_caller]
    pub fn start_metadata(&mut self, which: usize) {
        let config = self.config();
        let line: [&OsStr; 5] = [
            "server".as_ref(),
            "--config".as_ref(),
            config.as_os_str(),
            "--id".as_ref(),
            IDS[which].as_ref(),
        ];
        let (node, boot) = (self.metadata_node(which), format!("boot of {which}"));
        let environment = [("FOREBAY_BOOT_ID", &*boot)];
        self.metadata[which] = self.start_with(node, &log_of(which), &line, &environment);
        let pid = self.metadata_state(which).join("forebay.pid");
        let own = self.metadata[which].pid().as_raw_nonzero().to_string();
        wait_until("the metadata server serves, or stands by", || {
            std::fs::read_to_string(&pid).is_ok_and(|text| text.trim() == own)
        });
    }

    /// Kills a metadata server without a word.
    pub fn kill_metadata(&mut self, which: usize) {
        self.metadata[which].kill();
    }

    /// Stops or continues a metadata server.
    #[track_caller]
    pub fn signal_metadata(&self, which: usize, signal: Signal) {
        kill_process(self.metadata[which].pid(), signal).expect("signal");
    }

    /// Waits for the end of a metadata server: its exit code.
    #[track_caller]
    pub fn wait_metadata(&mut self, which: usize) -> Option<i32> {
        let mut child = self.metadata[which].0.take().expect("it runs");
        wait_bounded(&mut child, LONG)?.code()
    }

    /// What `forebay status --json` says on the node of a metadata server; nothing while it does
    /// not answer.
    pub fn metadata_status(&self, which: usize) -> Option<serde_json::Value> {
        let state = self.metadata_state(which);
        let args: [&OsStr; 4] = [
            "status".as_ref(),
            "--json".as_ref(),
            "--state".as_ref(),
            state.as_ref(),
        ];
        let said = self.run(self.metadata_node(which), &args);
        (said.code == 0).then(|| said.json())
    }

    /// Whether a metadata server leads.
    pub fn leads(&self, which: usize) -> bool {
        let status = self.metadata_status(which);
        status.is_some_and(|status| status["standby"].is_null())
    }
}
