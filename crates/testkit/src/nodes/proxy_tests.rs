use super::*;
use crate::wait_until;

/// Nothing here takes longer, or the test has failed.
const LIMIT: Duration = Duration::from_secs(20);
/// What does not come within this time does not come; a wrong proxy may be found late only.
const QUIET: Duration = Duration::from_millis(150);

struct Ground {
    proxy: CuttingProxy,
    listener: TcpListener,
}

impl Ground {
    fn new() -> Ground {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let proxy = CuttingProxy::here(listener.local_addr().expect("address"));
        Ground { proxy, listener }
    }

    /// Both ends of a connection through the proxy.
    fn connect(&self) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(self.proxy.address()).expect("the proxy");
        self.listener.set_nonblocking(true).expect("non-blocking");
        let mut accepted = None;
        wait_until("the proxy connects", || {
            accepted = accepted.take().or(self.listener.accept().ok());
            accepted.is_some()
        });
        let (server, _) = accepted.expect("accepted");
        server.set_nonblocking(false).expect("blocking");
        for end in [&client, &server] {
            end.set_read_timeout(Some(LIMIT)).expect("limit");
            end.set_write_timeout(Some(LIMIT)).expect("limit");
        }
        (client, server)
    }
}

/// All that comes, and whether it ends with a reset.
fn drain(mut from: &TcpStream) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    let ended = from.read_to_end(&mut bytes);
    let reset = ended.is_err_and(|error| {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        true
    });
    (bytes, reset)
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 % 251) as u8).collect()
}

#[test]
fn everything_goes_through_and_so_does_the_end() {
    let ground = Ground::new();
    let (mut client, mut server) = ground.connect();
    let large = content(3 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            client.write_all(&large).expect("to the server");
            client.shutdown(Shutdown::Write).expect("end");
        });
        let (there, reset) = drain(&server);
        assert!(there == large && !reset, "{} bytes", there.len());
    });
    server.write_all(b"answer").expect("to the client");
    drop(server);
    assert_eq!(drain(&client), (b"answer".to_vec(), false));
    let proxy = &ground.proxy;
    assert_eq!(proxy.forwarded(Way::ToServer), 3 << 20);
    assert_eq!(proxy.forwarded(Way::ToClient), 6);
    assert_eq!(proxy.resets(), 0);
}

#[test]
fn a_connection_ends_in_the_middle_of_a_frame() {
    for bytes in [0, 1, 1000, 300_000] {
        let ground = Ground::new();
        let (mut client, server) = ground.connect();
        ground.proxy.reset_after(Way::ToServer, bytes);
        let frame = content(400_000);
        std::thread::scope(|scope| {
            // It may fail before all is taken.
            scope.spawn(|| drop(client.write_all(&frame)));
            let (there, reset) = drain(&server);
            assert!(reset, "{bytes}");
            assert_eq!(there, frame[..bytes as usize], "{bytes}");
        });
        assert_eq!(drain(&client), (Vec::new(), true), "{bytes}");
        assert_eq!(ground.proxy.resets(), 1);
        // The next one is whole.
        let (mut client, server) = ground.connect();
        client.write_all(b"again").expect("to the server");
        drop(client);
        assert_eq!(drain(&server), (b"again".to_vec(), false));
    }
}

#[test]
fn answers_are_cut_as_well() {
    let ground = Ground::new();
    let (client, mut server) = ground.connect();
    ground.proxy.reset_after(Way::ToClient, 3);
    server.write_all(b"answer").expect("to the client");
    assert_eq!(drain(&client), (b"ans".to_vec(), true));
    assert_eq!(drain(&server), (Vec::new(), true));
}

#[test]
fn what_is_held_comes_later() {
    let ground = Ground::new();
    let (mut client, mut server) = ground.connect();
    ground.proxy.hold(Way::ToServer);
    client.write_all(b"late").expect("to the server");
    client.shutdown(Shutdown::Write).expect("end");
    server.write_all(b"soon").expect("to the client");
    let mut soon = [0; 4];
    client.read_exact(&mut soon).expect("the other way is open");
    server.set_read_timeout(Some(QUIET)).expect("limit");
    let held = server.read(&mut [0; 8]).expect_err("held");
    assert!(is_later(&held), "{held}");
    assert_eq!(ground.proxy.forwarded(Way::ToServer), 0);
    server.set_read_timeout(Some(LIMIT)).expect("limit");
    ground.proxy.release(Way::ToServer);
    assert_eq!(drain(&server), (b"late".to_vec(), false));
}

#[test]
fn all_connections_are_reset_and_new_ones_refused() {
    let ground = Ground::new();
    let pairs = [ground.connect(), ground.connect()];
    ground.proxy.refuse(true);
    ground.proxy.reset_all();
    for (client, server) in &pairs {
        assert_eq!(drain(client), (Vec::new(), true));
        assert_eq!(drain(server), (Vec::new(), true));
    }
    let refused = TcpStream::connect(ground.proxy.address()).expect("the proxy");
    refused.set_read_timeout(Some(LIMIT)).expect("limit");
    assert_eq!(drain(&refused), (Vec::new(), true));
    ground.proxy.refuse(false);
    let (mut client, server) = ground.connect();
    client.write_all(b"again").expect("to the server");
    drop(client);
    assert_eq!(drain(&server), (b"again".to_vec(), false));
}

#[test]
fn a_server_that_is_not_there_is_a_reset() {
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = nobody.local_addr().expect("address");
    drop(nobody);
    let proxy = CuttingProxy::here(address);
    let client = TcpStream::connect(proxy.address()).expect("the proxy");
    client.set_read_timeout(Some(LIMIT)).expect("limit");
    assert_eq!(drain(&client), (Vec::new(), true));
}

#[test]
fn a_proxy_that_goes_takes_its_connections_along() {
    let ground = Ground::new();
    let (client, server) = ground.connect();
    ground.proxy.hold(Way::ToServer);
    drop(ground.proxy);
    assert_eq!(drain(&client), (Vec::new(), true));
    assert_eq!(drain(&server), (Vec::new(), true));
}
