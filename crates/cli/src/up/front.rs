//! By what a burst buffer is reached: a mount in its own process, or the network.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use forebay_client::Client;
use forebay_mount::{Company, MountOptions, Mounted};
use forebay_server::Instance;
use forebay_wire::InMemory;

use super::again::{Again, Sources};
use super::settle::{Plan, Read};
use super::supervisor::Supervisor;
use super::tiers;
use crate::abort::Aborter;
use crate::exit::{Explain, Failure, reason};

/// By what a burst buffer is reached.
pub trait Front {
    /// What messages call it.
    fn name<'a>(&self, plan: &'a Plan) -> &'a Path;

    /// The command that starts it again, where that is not `forebay up`.
    fn command(&self) -> Option<String> {
        None
    }

    /// The arguments with which the process can start itself anew, where it can: nobody may lose
    /// anything by that but time.
    fn arguments(&self) -> Option<Vec<OsString>> {
        None
    }

    /// Which server of which cluster it is, where another may lead in its place.
    fn stands_by_as(&self) -> Option<(u16, &str)> {
        None
    }

    /// Whether that start would come as far as this one has, as far as can be told before.
    fn check_start(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// The line that says that it is up.
    fn announcement(&self, plan: &Plan) -> String;

    /// Its settings, where it can read them again while it runs.
    fn again(&self) -> Option<&Arc<Again>> {
        None
    }

    /// Opens it, and waits until it answers.
    fn open(
        &self,
        plan: &Plan,
        instance: &Arc<Instance>,
        supervisor: &Supervisor,
    ) -> Result<Box<dyn OpenFront>, Failure>;
}

/// One that is open.
pub trait OpenFront {
    /// Lets nobody in any more, and takes in what was under way.
    fn close(self: Box<Self>, instance: &Instance);
}

/// `forebay up`: a mount in the process of the server.
pub struct MountHere {
    again: Arc<Again>,
}

impl MountHere {
    /// One whose settings are from these sources, and were read as these.
    pub fn again_from(sources: Sources, read: &Read) -> Result<MountHere, Failure> {
        Ok(MountHere {
            again: Arc::new(Again::new(sources, read)?),
        })
    }
}

impl Front for MountHere {
    fn name<'a>(&self, plan: &'a Plan) -> &'a Path {
        plan.settings.shown_at()
    }

    fn announcement(&self, plan: &Plan) -> String {
        format!(
            "{} is up in front of {}, with {} (process {})",
            self.name(plan).display(),
            plan.settings.pfs.display(),
            tiers(plan),
            std::process::id()
        )
    }

    fn again(&self) -> Option<&Arc<Again>> {
        Some(&self.again)
    }

    fn open(
        &self,
        plan: &Plan,
        instance: &Arc<Instance>,
        supervisor: &Supervisor,
    ) -> Result<Box<dyn OpenFront>, Failure> {
        let settings = &plan.settings;
        let point = self.name(plan);
        let client = Client::new(Arc::new(InMemory::mount(instance.service())));
        let options = MountOptions {
            mount_point: point.to_path_buf(),
            source: settings.state.to_string_lossy().into_owned(),
            allow_other: plan.allow_other,
            threads: plan.threads,
            passthrough: settings.passthrough,
            company: Company::Alone,
            root_squashed: false,
        };
        let what = format!("{}: cannot mount", point.display());
        let mounted = forebay_mount::mount(client, &options).explain(what, "")?;
        let aborter = Aborter::start(point);
        instance.write_back_by(Box::new(mounted.write_back()));
        let stopped = instance.clone();
        mounted.on_unmounted(Box::new(move || stopped.request_stop()));
        let supervisor = supervisor.clone();
        mounted.on_thread_death(Box::new(move |what| supervisor.died(what)));
        let open = Box::new(OpenMount {
            mounted,
            point: point.to_path_buf(),
            aborter,
        });
        if let Err(error) = std::fs::metadata(point) {
            open.close(instance);
            let what = format!("{}: mounted, but it does not answer", point.display());
            return Err(error).explain(what, "");
        }
        Ok(open)
    }
}

struct OpenMount {
    mounted: Mounted,
    point: std::path::PathBuf,
    aborter: Aborter,
}

impl OpenFront for OpenMount {
    fn close(self: Box<Self>, instance: &Instance) {
        drop(self.aborter);
        unmount(&self.mounted, &self.point);
        // Programs may go on using it, whoever has taken it out of the tree. No page is given out
        // from here on, so that nothing is stored that nobody takes in.
        self.mounted.end_pages();
        instance.fetch_last_stores();
    }
}

/// Takes a mount out of the tree; if programs still use it, without waiting for them.
pub fn unmount(mounted: &Mounted, point: &Path) {
    let Err(error) = mounted.unmount(false) else {
        return;
    };
    tracing::warn!(
        "{}: {}; the mount is taken out of the tree all the same",
        point.display(),
        reason(&error)
    );
    if let Err(error) = mounted.unmount(true) {
        tracing::error!("{}: cannot unmount: {}", point.display(), reason(&error));
    }
}
