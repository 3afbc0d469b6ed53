import { expect, test } from "bun:test";
import { join } from "node:path";
import { bindPublisher, bindRouter } from "../../../src/events/zmtp/index.ts";
import { describePyzmq, PyzmqProcess, waitFor, withTempDir } from "../../support/index.ts";
import { ask, bytes, clock, collect, LIMITS, random, texts } from "./support.ts";

/** Publishes "t", a counter and a body repeatedly; prints its endpoint. */
function publisher(endpoint: string): string {
  return `
p = c.socket(zmq.PUB)
p.bind("${endpoint}")
print(p.getsockopt_string(zmq.LAST_ENDPOINT))
i = 0
while True:
  p.send_multipart([b"t", i.to_bytes(8, "big"), bytes([i % 251]) * (i * 997 % 80000)])
  p.send_multipart([b"other", b"x"])
  i += 1
  time.sleep(0.002)
`;
}

async function line(child: PyzmqProcess, at = 0): Promise<string> {
  await waitFor(() => child.lines.length > at, 20_000, "a line of Python's");
  return child.lines[at]!;
}

describePyzmq("Hearth's sockets and libzmq's", () => {
  test("SUB receives the messages of a PUB under its topics, byte for byte", async () => {
    await using child = new PyzmqProcess(publisher("tcp://127.0.0.1:*"));
    await using sub = collect(await line(child), ["t"]);
    await waitFor(() => sub.messages.length >= 150, 20_000, "150 messages");
    const first = Number(Buffer.from(sub.messages[0]![1]!).readBigUInt64BE());
    for (const [n, [topic, sequence, body]] of sub.messages.entries()) {
      const i = first + n;
      expect(Buffer.from(topic!).toString()).toBe("t");
      expect(Number(Buffer.from(sequence!).readBigUInt64BE())).toBe(i);
      expect(body!.length).toBe((i * 997) % 80_000);
      expect(body!.every((byte) => byte === i % 251)).toBe(true);
    }
    expect(sub.state).toMatchObject({ status: "connected", why: null, connections: 1, refused: 0 });
  });

  test("SUB reconnects to a killed PUB, over TCP and over a Unix socket", async () => {
    await withTempDir(async (folder) => {
      for (const bound of ["tcp://127.0.0.1:*", `ipc://${join(folder, "pub")}`]) {
        const first = new PyzmqProcess(publisher(bound));
        const endpoint = await line(first);
        await using sub = collect(endpoint, ["t"]);
        await waitFor(() => sub.messages.length > 0, 20_000, "a message");
        await first.kill();
        await waitFor(() => sub.state.status === "connecting");
        expect(sub.state.why).not.toBeNull();
        sub.messages.length = 0;
        await using _second = new PyzmqProcess(publisher(endpoint));
        await waitFor(() => sub.messages.length > 0, 20_000, "a message of the second");
        expect(sub.state.connections).toBe(2);
      }
    });
  });

  test("DEALER gets many answers per request from a ROUTER, across its restart", async () => {
    const script = (endpoint: string) => `
r = c.socket(zmq.ROUTER)
r.bind("${endpoint}")
print(r.getsockopt_string(zmq.LAST_ENDPOINT))
while True:
  identity, empty, asked = r.recv_multipart()
  for i in range(3):
    r.send_multipart([identity, empty, asked, str(i).encode()])
`;
    const first = new PyzmqProcess(script("tcp://127.0.0.1:*"));
    const endpoint = await line(first);
    await using dealer = ask(endpoint);
    await waitFor(() => dealer.state.status === "connected", 20_000);
    expect(dealer.send([new Uint8Array(), bytes("q1")])).toBe(true);
    await waitFor(() => dealer.messages.length === 3);
    expect(dealer.messages.map(texts)).toEqual([
      ["", "q1", "0"],
      ["", "q1", "1"],
      ["", "q1", "2"],
    ]);
    await first.kill();
    await waitFor(() => dealer.state.status === "connecting");
    expect(dealer.send([new Uint8Array(), bytes("lost")])).toBe(false);
    await using _second = new PyzmqProcess(script(endpoint));
    await waitFor(() => dealer.send([new Uint8Array(), bytes("q2")]), 20_000);
    await waitFor(() => dealer.messages.length === 6);
    expect(texts(dealer.messages[5]!)).toEqual(["", "q2", "2"]);
  });

  test("a SUB of libzmq receives messages of our PUB until it unsubscribes", async () => {
    await using pub = await bindPublisher({ endpoint: "tcp://127.0.0.1:*", clock, random });
    await using child = new PyzmqProcess(`
s = c.socket(zmq.SUB)
s.connect("${pub.endpoint}")
s.subscribe(b"ab")
s.subscribe(b"ab")
got = [s.recv_multipart() for _ in range(20)]
print(all(m == [b"abc", b"\\7" * 300000] for m in got))
s.unsubscribe(b"ab")
s.unsubscribe(b"ab")
s.subscribe(b"end")
while s.recv_multipart()[0] != b"end": pass
print("end")
`);
    const big = new Uint8Array(300_000).fill(7);
    await waitFor(() => pub.subscribers > 0, 20_000, "a subscriber");
    const [answer, end] = [() => child.lines[0], () => child.lines[1]];
    await waitFor(() => {
      pub.publish([bytes("x"), bytes("1")]);
      pub.publish([bytes("abc"), big]);
      return answer() !== undefined;
    });
    expect(answer()).toBe("True");
    await waitFor(() => {
      pub.publish([bytes("end")]);
      return end() !== undefined;
    });
    await waitFor(() => pub.subscribers === 0, 20_000, "its departure");
  });

  test("libzmq's SUB reconnects to our PUB, and its DEALER and REQ query our ROUTER", async () => {
    const onMessage: Parameters<typeof bindRouter>[0]["onMessage"] = (message, reply) => {
      reply([...message, bytes("1")]);
      reply([...message, bytes("2")]);
    };
    const open = (endpoint: string) => bindRouter({ endpoint, clock, random, onMessage });
    const first = await open("tcp://127.0.0.1:*");
    await using child = new PyzmqProcess(`
d = c.socket(zmq.DEALER)
d.connect("${first.endpoint}")
d.send_multipart([b"", b"a" * 70000])
print([[len(f) for f in d.recv_multipart()] for _ in range(2)])
q = c.socket(zmq.REQ)
q.connect("${first.endpoint}")
q.send(b"b")
print(q.recv_multipart())
sys.stdin.readline()
d.send_multipart([b"", b"again"])
# A message sent before libzmq notices the end of the old connection is lost.
while not d.poll(1000): d.send_multipart([b"", b"again"])
print(d.recv_multipart())
`);
    expect(await line(child, 0)).toBe("[[0, 70000, 1], [0, 70000, 1]]");
    expect(await line(child, 1)).toBe("[b'b', b'1']");
    const { endpoint } = first;
    await first[Symbol.asyncDispose]();
    await using _second = await open(endpoint);
    child.write("go on");
    expect(await line(child, 2)).toBe("[b'', b'again', b'1']");
  });

  test(
    "a SUB that reads nothing loses messages, which are counted, and delays no " + "other",
    async () => {
      const limits = { ...LIMITS, queueMessagesMax: 50, queueBytesMax: 8 * 1024 * 1024 };
      const options = { endpoint: "tcp://127.0.0.1:*", clock, random, limits };
      await using pub = await bindPublisher(options);
      await using child = new PyzmqProcess(`
s = c.socket(zmq.SUB)
s.setsockopt(zmq.RCVHWM, 2)
s.connect("${pub.endpoint}")
s.subscribe(b"")
print(len(s.recv_multipart()[1]))
sys.stdin.readline()
n = 0
while s.recv_multipart()[0] != b"end": n += 1
print(n)
`);
      await using fast = collect(pub.endpoint);
      await waitFor(() => pub.subscribers === 2, 20_000, "two subscribers");
      const body = new Uint8Array(100_000);
      await waitFor(() => {
        pub.publish([bytes("t"), body]);
        return child.lines.length > 0;
      });
      let published = 0;
      await waitFor(() => {
        pub.publish([bytes("t"), body]);
        published++;
        return pub.dropped > 100;
      });
      await waitFor(() => fast.messages.length > published, 20_000, "all for the one that reads");
      child.write("read");
      await waitFor(() => {
        pub.publish([bytes("end")]);
        return child.lines.length > 1;
      });
      expect(Number(child.lines[1])).toBeLessThan(published);
    },
  );

  test("each side answers the other's heartbeats", async () => {
    await using pub = await bindPublisher({ endpoint: "tcp://127.0.0.1:*", clock, random });
    await using child = new PyzmqProcess(`
s = c.socket(zmq.SUB)
s.setsockopt(zmq.HEARTBEAT_IVL, 20)
s.setsockopt(zmq.HEARTBEAT_TIMEOUT, 400)
m = s.get_monitor_socket(zmq.EVENT_DISCONNECTED)
s.connect("${pub.endpoint}")
s.subscribe(b"")
print("quiet" if m.poll(700) == 0 and s.poll(0) == 0 else "lost")
p = c.socket(zmq.PUB)
p.bind("tcp://127.0.0.1:*")
print(p.getsockopt_string(zmq.LAST_ENDPOINT))
time.sleep(60)
`);
    expect(await line(child, 0)).toBe("quiet");
    const limits = { pingMs: 20, silenceMs: 2_000 };
    await using sub = collect(await line(child, 1), [""], limits);
    await waitFor(() => sub.state.status === "connected", 20_000);
    const since = clock.monotonicMs();
    await waitFor(() => clock.monotonicMs() - since > 300);
    expect(sub.state).toMatchObject({ status: "connected", connections: 1 });
    // Stopped with SIGSTOP, it answers nothing while its connection stays open.
    child.signal("SIGSTOP");
    await waitFor(() => /silent/.test(sub.state.why ?? ""), 20_000, "that it is missed");
    child.signal("SIGCONT");
  });
});
