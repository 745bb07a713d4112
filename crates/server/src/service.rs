//! Requests in, replies out.

use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use forebay_namespace::Published;
use forebay_tiers::PfsStat;
use forebay_types::{Cred, Dirent, Errno, Handle, RenameMode, failpoint, limits};
use forebay_wire::control::{Control, ControlResponse, JobProgress};
use forebay_wire::{Link, Peer, Reply, Request, Response, Service, Shown, WriteHow};

use crate::base::failure::Failure;
use crate::base::life::StopOrder;
use crate::orders::asker::Asker;
use crate::orders::jobs;
use crate::rooms::Rooms;

/// A job that is not finished so long after the PFS was given up blocks in a call on it.
const STUCK_AFTER: Duration = Duration::from_secs(2);
/// Who waits for an answer looks this often whether it can still come.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Answers requests by calls to the [`Rooms`] of one server.
pub struct Server {
    rooms: Arc<Rooms>,
}

impl Server {
    /// Serves requests with these rooms.
    pub fn new(rooms: Arc<Rooms>) -> Server {
        Server { rooms }
    }
}

impl Service for Server {
    fn handle(&self, peer: Peer<'_>, request: Request, payload: &[u8], into: &mut [u8]) -> Reply {
        let name = request.name();
        let answered = match request {
            Request::Control(control) => self
                .control(peer, control)
                .map(|c| Response::Control(c).into()),
            // Only the mount can vouch for a program's user.
            _ if !peer.mount => Err(Errno::EPERM.into()),
            Request::ControlFor {
                uid,
                gid,
                groups,
                control,
            } => {
                let asker = Peer {
                    uid,
                    gid,
                    groups: &groups,
                    local: false,
                    near: false,
                    mount: false,
                    socket: None,
                };
                self.control_from_elsewhere(asker, control)
            }
            other => self.answer(peer, other, payload, into),
        };
        answered.unwrap_or_else(|failure| Reply::from(failure.told(name)))
    }
}

impl Server {
    fn answer(
        &self,
        peer: Peer<'_>,
        request: Request,
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<Reply, Failure> {
        let life = self.rooms.base.life();
        let _change = request.changes().then(|| life.change()).transpose()?;
        match request {
            Request::Create { .. } | Request::CreateUnnamed { .. } | Request::Open { .. } => {
                self.answer_open(peer, request)
            }
            Request::Release { .. }
            | Request::Read { .. }
            | Request::Write { .. }
            | Request::Fsync { .. }
            | Request::Space { .. }
            | Request::Seek { .. } => self.answer_file(request, payload, into),
            Request::ReleaseMany(handles) => self.release_each(handles),
            other => self.answer_tree(other).map(Reply::from),
        }
    }

    /// Closes each, whatever becomes of the others; the first failure is the outcome.
    fn release_each(&self, handles: Vec<Handle>) -> Result<Reply, Failure> {
        let mut failed = None;
        for handle in handles {
            match self.rooms.files.release(handle) {
                // Who asked hears of the first one only.
                Err(failure) if failed.is_some() => drop(failure.told("close")),
                Err(failure) => failed = Some(failure),
                Ok(()) => {}
            }
        }
        failed.map_or_else(|| Ok(Response::Done.into()), Err)
    }

    fn answer_open(&self, peer: Peer<'_>, request: Request) -> Result<Reply, Failure> {
        let rooms = &self.rooms;
        Ok(match request {
            Request::Create {
                link,
                perm,
                flags,
                cred,
                shows_parent,
            } => {
                let near = rooms.files.near(peer, cred.process);
                let (attr, opened, descriptor) =
                    rooms.files.create(&link, perm, flags, cred, near)?;
                rooms.plan.note_opened(opened.handle, flags, &cred);
                // The file is there, whatever becomes of this look.
                let look = || rooms.files.getattr(link.parent);
                let parent = shows_parent.then(look).and_then(|found| {
                    let found = found.map_err(|failure| failure.told("create: its directory"));
                    let shown = |attr| Shown {
                        whole: rooms.base.ns().has_all_names(link.parent),
                        ..Shown::from(attr)
                    };
                    found.ok().map(|attr| Box::new(shown(attr)))
                });
                Reply {
                    response: Response::Created(attr.into(), opened, parent),
                    descriptor,
                }
            }
            Request::CreateUnnamed {
                parent,
                perm,
                flags,
                cred,
            } => {
                let (attr, opened) = rooms.files.create_unnamed(parent, perm, flags, cred)?;
                rooms.plan.note_opened(opened.handle, flags, &cred);
                Response::Created(attr.into(), opened, None).into()
            }
            Request::Open { ino, flags, cred } => {
                let near = rooms.files.near(peer, cred.process);
                let (opened, descriptor) = rooms.files.open(ino, flags, near)?;
                rooms.plan.note_opened(opened.handle, flags, &cred);
                if flags.writes() {
                    rooms.files.is_written_by(opened.handle, cred.process);
                }
                Reply {
                    response: Response::Opened(opened),
                    descriptor,
                }
            }
            _ => return Err(Errno::ENOSYS.into()),
        })
    }

    fn wrote(&self, handle: Handle, bytes: usize, how: WriteHow) -> Response {
        let pause = self.rooms.files.pause_after(handle, bytes, how);
        let bytes = bytes as u32;
        match u32::try_from(pause.as_millis()).unwrap_or(u32::MAX) {
            0 => Response::Moved(bytes),
            pause_ms => Response::Paced { bytes, pause_ms },
        }
    }

    fn answer_file(
        &self,
        request: Request,
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<Reply, Failure> {
        let rooms = &self.rooms;
        let would_wait = |done: Option<Response>| done.unwrap_or(Response::WouldWait);
        Ok(match request {
            Request::Release { handle } => {
                rooms.files.release(handle)?;
                Response::Done.into()
            }
            Request::Read {
                handle,
                offset,
                len,
                ..
            } => {
                let len = (len as usize).min(into.len());
                Response::Moved(rooms.files.read(handle, offset, &mut into[..len])? as u32).into()
            }
            Request::Write {
                handle,
                offset,
                how,
            } => {
                let written = rooms.files.write(handle, offset, payload, how)?;
                would_wait(written.map(|n| self.wrote(handle, n, how))).into()
            }
            Request::Fsync { handle, data_only } => {
                rooms.files.fsync(handle, data_only)?;
                Response::Done.into()
            }
            Request::Space {
                handle,
                change,
                offset,
                len,
                drop_suid,
                may_wait,
            } => {
                let range = (offset, len);
                let done = rooms
                    .files
                    .change_space(handle, change, range, drop_suid, may_wait)?;
                would_wait(done.map(|()| Response::Done)).into()
            }
            Request::Seek {
                handle,
                offset,
                what,
            } => Response::Position(rooms.files.seek(handle, offset, what)?).into(),
            _ => return Err(Errno::ENOSYS.into()),
        })
    }

    /// Whatever it is, names on the PFS that it changes are to be flushed.
    fn answer_tree(&self, request: Request) -> Result<Response, Failure> {
        let changed = changed_dirs(&request);
        let answer = self.answer_node(request)?;
        for parent in changed.into_iter().flatten() {
            self.rooms.files.note_names(parent);
        }
        Ok(answer)
    }

    fn look_up(&self, link: &Link) -> Result<Shown, Failure> {
        let ns = self.rooms.base.ns();
        let found = ns.lookup(link.parent, &link.name)?;
        let birth_ns = ns.birth_of(found.attr.ino);
        let files = &self.rooms.files;
        let (attr, outdated) = files.attr_of_name(found.attr, found.file.as_ref())?;
        Ok(Shown {
            birth_ns,
            outdated,
            ..attr.into()
        })
    }

    fn answer_node(&self, request: Request) -> Result<Response, Failure> {
        let rooms = &self.rooms;
        let ns = &rooms.base.ns();
        Ok(match request {
            Request::Lookup { link, .. } => Response::Attr(self.look_up(&link)?),
            Request::Forget(nodes) => {
                nodes
                    .iter()
                    .for_each(|(ino, count)| ns.forget(*ino, *count));
                rooms.files.note_forgotten(&nodes);
                Response::Done
            }
            Request::FindNameless { ino, life } => {
                let (attr, file) = ns.find_nameless(ino, life)?;
                Response::Attr(rooms.files.live_attr(attr, Some(&file))?.into())
            }
            Request::Getattr { ino, .. } => Response::Attr(rooms.files.getattr(ino)?.into()),
            Request::Setattr {
                ino,
                handle,
                set,
                cred,
            } => Response::Attr(rooms.files.setattr(ino, handle, &set, cred)?.into()),
            Request::Readlink { ino } => Response::Bytes(ns.readlink(ino)?),
            Request::Mknod {
                link,
                mode,
                rdev,
                cred,
            } => Response::Attr(ns.mknod(link.parent, &link.name, mode, rdev, &cred)?.into()),
            Request::Mkdir { link, perm, cred } => {
                let attr = rooms.orders.mkdir(&link, perm, &cred)?;
                Response::Attr(Shown {
                    whole: true,
                    ..attr.into()
                })
            }
            Request::Symlink { link, target, cred } => {
                Response::Attr(ns.symlink(link.parent, &link.name, &target, &cred)?.into())
            }
            Request::Link { ino, link, cred } => {
                let (attr, outdated) = rooms.files.link(ino, &link, &cred)?;
                Response::Attr(Shown {
                    outdated,
                    ..attr.into()
                })
            }
            Request::Statfs => Response::Statfs(ns.statfs()?),
            Request::PfsHealth => {
                let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
                Response::PfsHealth {
                    silent_ms: rooms.base.health().silent_for().map_or(0, ms),
                    give_up_after_ms: ms(rooms.base.health().give_up_after()),
                }
            }
            Request::OpenDir { ino, .. } => {
                ns.check_dir(ino)?;
                Response::OpenedDir(rooms.buffer.opens().add_dir(ino))
            }
            Request::ReadDir { handle, offset } => {
                let entries = self.entries(handle, offset)?;
                let from = (offset as usize).min(entries.len());
                let to = (from + limits::DIRENTS_PER_REPLY_MAX).min(entries.len());
                Response::Entries(entries[from..to].to_vec())
            }
            Request::CloseDir { handle } => {
                rooms.buffer.opens().remove_dir(handle)?;
                Response::Done
            }
            other => return self.answer_names(other),
        })
    }

    /// A directory that is read from the start, by rewinddir(3) too, shows what is in it then.
    fn entries(&self, handle: Handle, offset: u64) -> Result<Arc<Vec<Dirent>>, Failure> {
        let rooms = &self.rooms;
        if offset > 0 {
            return Ok(rooms.buffer.opens().entries(handle)?);
        }
        let entries = Arc::new(
            rooms
                .base
                .ns()
                .read_dir(rooms.buffer.opens().dir(handle)?)?,
        );
        rooms.buffer.opens().set_entries(handle, entries.clone())?;
        Ok(entries)
    }

    fn answer_names(&self, request: Request) -> Result<Response, Failure> {
        let rooms = &self.rooms;
        let ns = &rooms.base.ns();
        match request {
            Request::Unlink { link, .. } => {
                rooms.files.keep_for_clients(&link);
                let had = rooms.files.had(&link);
                if let Some(file) = ns.unlink(link.parent, &link.name)? {
                    rooms.files.lost_name(&file, &had);
                    rooms.buffer.wake_collector();
                }
                rooms.files.name_is_gone(&link, &had);
                rooms.base.forget_error(link.parent, &link.name);
            }
            Request::Rmdir { link, .. } => ns.rmdir(link.parent, &link.name)?,
            Request::Rename {
                from,
                to,
                mode,
                cred,
            } => self.rename(&from, &to, mode, &cred)?,
            Request::GetXattr { ino, name, .. } => {
                return Ok(Response::Bytes(ns.get_xattr(ino, &name)?));
            }
            Request::SetXattr {
                ino,
                name,
                value,
                mode,
                cred,
            } => {
                if name == b"user.forebay.commit"
                    && let forebay_namespace::Node::Dir(dir) = ns.node(ino)?
                {
                    rooms.orders.order_publication(&dir)?;
                    return Ok(Response::Done);
                }
                ns.set_xattr(ino, &name, &value, mode)?;
                if name == forebay_namespace::ACCESS_LIST {
                    rooms.files.clear_group_id_of_outsider(ino, &cred)?;
                }
                if name.starts_with(b"user.forebay.")
                    && let Ok(forebay_namespace::Node::File(file)) = ns.node(ino)
                {
                    rooms.buffer.name_by_xattrs(&file);
                    rooms
                        .catalog
                        .note_renamed(file.object, file.lock().meta.uid);
                }
            }
            Request::ListXattr { ino, cred } => {
                return Ok(Response::Bytes(ns.list_xattr(ino, &cred)?));
            }
            Request::RemoveXattr { ino, name, .. } => ns.remove_xattr(ino, &name)?,
            // Names of burst-buffer files are records; all others are on the PFS.
            Request::FsyncDir { ino } => rooms.files.sync_dir(ino)?,
            Request::ShowProbe => {
                let (name, content) = rooms.lifecycle.show_probe()?;
                return Ok(Response::Probe { name, content });
            }
            Request::HideProbe { name } => rooms.lifecycle.hide_probe(&name)?,
            _ => return Err(Errno::ENOSYS.into()),
        }
        Ok(Response::Done)
    }

    fn rename(
        &self,
        from: &forebay_wire::Link,
        to: &forebay_wire::Link,
        mode: RenameMode,
        _cred: &Cred,
    ) -> Result<(), Failure> {
        let rooms = &self.rooms;
        let is_stable = rooms.files.stabilise_for_rename(from, to)?;
        failpoint::hit(failpoint::Point::RenameStable);
        match mode {
            RenameMode::Exchange => drop(rooms.files.stabilise_for_rename(to, from)?),
            RenameMode::Replace => rooms.files.keep_for_clients(to),
            RenameMode::NoReplace => {}
        }
        let had = (rooms.files.had(from), rooms.files.had(to));
        let watched = rooms.files.in_place().watch_rename();
        let _renaming = rooms.base.ns().begin_rename(from.parent, &from.name)?;
        let opens = rooms.buffer.opens().on_pfs();
        let parts = |stat: &PfsStat| is_stable && opens.has(stat.id.ino, stat.id.btime_ns);
        let (old, new) = ((from.parent, &from.name[..]), (to.parent, &to.name[..]));
        let renamed = rooms.base.ns().rename_over(old, new, mode, &parts);
        rooms.base.absorb_conflicts();
        let replaced = renamed?;
        failpoint::hit(failpoint::Point::RenameNamed);
        rooms.files.was_renamed((from, &had.0), (to, &had.1), mode);
        if let Some(file) = replaced {
            rooms.files.lost_name(&file, &had.1);
            rooms.buffer.wake_collector();
        }
        if let Ok(forebay_namespace::Node::Dir(dir)) = rooms.base.ns().node(to.parent)
            && let Ok(found) = rooms.base.ns().lookup_in(&dir, &to.name, false)
            && let Some(file) = found.file
        {
            rooms
                .buffer
                .renamed(&file, &rooms.catalog.rules().identify(&file.path()));
            let older = {
                let state = file.lock();
                state.residency.published.filter(|_| state.is_dirty())
            };
            // Who had it open has closed it meanwhile, perhaps.
            let is_changed = |older: Published| {
                let (ino, btime_ns) = (older.ino, older.btime_ns);
                opens.has_writer(ino, btime_ns) || watched.has_seen(ino, btime_ns)
            };
            let is_used = |older: Published| opens.has(older.ino, older.btime_ns);
            let is_changed = older.is_some_and(is_changed);
            if (is_changed || older.is_some_and(is_used))
                && let Err(failure) = rooms.files.part_from_older(&file, is_changed)
            {
                // The rename is done.
                let reason = format!("what it has replaced is in use, and may be kept: {failure}");
                rooms.base.report(file.path(), failure.errno(), reason);
            }
        }
        Ok(())
    }

    /// Whether whatever still waits for the PFS blocks in a call on it: the rest has had an error.
    fn is_stuck(&self) -> bool {
        let health = self.rooms.base.health();
        let limit = health.give_up_after().saturating_add(STUCK_AFTER);
        health.silent_for().is_some_and(|silent| silent >= limit)
    }

    /// Answers on another thread, which is left alone if it blocks in a call on the PFS.
    fn bounded(
        &self,
        answer: impl FnOnce(&Rooms) -> ControlResponse + Send + 'static,
    ) -> Result<ControlResponse, Failure> {
        let rooms = self.rooms.clone();
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::Builder::new()
            .name("fb-answer".into())
            // If nobody waits for the answer any more, nobody misses it.
            .spawn(move || drop(send.send(answer(&rooms))))?;
        loop {
            match receive.recv_timeout(LOOK_AGAIN) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Timeout) if !self.is_stuck() => {}
                Err(RecvTimeoutError::Timeout) => return Err(Errno::ETIMEDOUT.into()),
                Err(RecvTimeoutError::Disconnected) => return Err(Errno::EIO.into()),
            }
        }
    }

    fn job(&self, id: u64, asker: &Asker) -> Option<JobProgress> {
        let rooms = &self.rooms;
        match rooms.base.given_up().filter(|_| self.is_stuck()) {
            Some(why) => rooms.orders.jobs().progress_without_pfs(id, asker, &why),
            None => rooms.orders.jobs().progress(id, asker),
        }
    }

    fn control_from_elsewhere(&self, asker: Peer<'_>, control: Control) -> Result<Reply, Failure> {
        match control.may_come_from_elsewhere() {
            true => Ok(Response::Control(self.control(asker, control)?).into()),
            false => Err(Errno::EPERM.into()),
        }
    }

    fn control(&self, peer: Peer<'_>, control: Control) -> Result<ControlResponse, Failure> {
        let rooms = &self.rooms;
        let asker = Asker::of(peer);
        let job = |progress: Option<JobProgress>| {
            let progress = progress.ok_or(Errno::ENOENT)?;
            Ok(ControlResponse::Job(progress))
        };
        match control {
            Control::Status => Ok(ControlResponse::Status(Box::new(rooms.status_for(&asker)))),
            Control::Where { paths, after } => {
                self.bounded(move |rooms| rooms.locate(&asker, &paths, after))
            }
            Control::History(asked) => Ok(ControlResponse::History(
                rooms.lifecycle.history(&asker, &asked)?,
            )),
            Control::Start { movement, paths } => Ok(ControlResponse::Started {
                id: jobs::run::start(&rooms.orders, movement, paths, asker)?,
            }),
            Control::Job { id } => job(self.job(id, &asker)),
            Control::Cancel { id } => job(rooms.orders.jobs().cancel(id, &asker)),
            Control::InForce => Ok(ControlResponse::InForce(rooms.in_force(&asker))),
            _ if !asker.is_trusted() => Err(Errno::EPERM.into()),
            Control::Reload => Ok(ControlResponse::Reloaded(rooms.reload())),
            Control::Shutdown { drain, timeout_ms } => {
                let deadline =
                    (timeout_ms > 0).then(|| Instant::now() + Duration::from_millis(timeout_ms));
                rooms.base.life().order_stop(StopOrder {
                    drain,
                    deadline,
                    anew: false,
                });
                Ok(ControlResponse::Stopping)
            }
            Control::Calibrate { step, time_ms } => {
                let time = Duration::from_millis(time_ms.clamp(100, 60_000));
                let calibrated = rooms.plan.calibrate(step, time, &|| peer.has_left());
                calibrated.map(ControlResponse::Calibrated)
            }
            Control::Policy { policy, placement } => {
                rooms
                    .plan
                    .choose_policy(policy.as_deref(), placement.as_deref())?;
                Ok(ControlResponse::Status(Box::new(rooms.status())))
            }
            Control::Node { server, empty } => {
                rooms.order_node(server, empty)?;
                Ok(ControlResponse::Status(Box::new(rooms.status())))
            }
            Control::Lend { bytes, name } => {
                rooms.lifecycle.order_lend(&name, bytes)?;
                Ok(ControlResponse::Status(Box::new(rooms.status())))
            }
            Control::Fsck { dry_run, checksums } => self.bounded(move |rooms| {
                ControlResponse::Fsck(rooms.lifecycle.fsck(dry_run, checksums, true))
            }),
        }
    }
}

/// The directories in which a request changes names.
fn changed_dirs(request: &Request) -> [Option<forebay_types::Ino>; 2] {
    match request {
        Request::Mknod { link, .. }
        | Request::Mkdir { link, .. }
        | Request::Symlink { link, .. }
        | Request::Link { link, .. }
        | Request::Unlink { link, .. }
        | Request::Rmdir { link, .. } => [Some(link.parent), None],
        Request::Rename { from, to, .. } if from.parent == to.parent => [Some(to.parent), None],
        Request::Rename { from, to, .. } => [Some(from.parent), Some(to.parent)],
        _ => [None, None],
    }
}
