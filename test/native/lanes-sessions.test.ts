import { expect, test } from "bun:test";
import { lookup } from "node:dns/promises";
import { connect, type Socket } from "node:net";
import { CIPHERS, type Cipher, type LaneSession, NativeError } from "../../src/native/index.ts";
import { GateProxy } from "../support/gate-proxy.ts";
import { describeNative } from "../support/native.ts";
import { waitFor } from "../support/wait.ts";
import { expectOpenFiles, openFiles } from "./disk-kit.ts";
import {
  faultOf,
  HANG_MS,
  HOST,
  join,
  MIB,
  move,
  newSession,
  openPair,
  openSide,
  withSides,
} from "./lanes-kit.ts";

/** The outcome of dialling a session that differs from the expected one. */
async function dialOther(
  change: (session: LaneSession) => LaneSession,
  cipher: Cipher = "aegis-128l",
): Promise<string[]> {
  const faults: string[] = [];
  await withSides(async (from, to, port) => {
    const session = newSession(cipher, 2);
    const expected = faultOf(from.lanes.expect(session, 300));
    faults.push(await faultOf(to.lanes.dial(change(session), HOST, port, HANG_MS)));
    faults.push(await expected);
  });
  return faults;
}

function knock(port: number): Promise<Socket> {
  const { promise, resolve, reject } = Promise.withResolvers<Socket>();
  const socket = connect(port, HOST, () => resolve(socket));
  socket.on("error", reject);
  return promise;
}

function changed(bytes: Uint8Array): Uint8Array {
  const copy = Uint8Array.from(bytes);
  copy[7]! ^= 1;
  return copy;
}

describeNative("sessions of lanes", () => {
  test("without a dialler expire", async () => {
    await using side = openSide();
    side.lanes.listen(HOST, 0);
    expect(await faultOf(side.lanes.expect(newSession("none", 1), 30))).toBe("expired");
  });

  test("to a closed port are unreachable", async () => {
    await withSides(async (from, to, port) => {
      await from[Symbol.asyncDispose]();
      const session = newSession("aegis-128l", 2);
      expect(await faultOf(to.lanes.dial(session, HOST, port, HANG_MS))).toBe("unreachable");
      const nowhere = "host.that.is.not.there.invalid";
      expect(await faultOf(to.lanes.dial(session, nowhere, 1, HANG_MS))).toBe("unreachable");
    });
  });

  test("to a silent listener expire", async () => {
    await using to = openSide();
    using mute = Bun.listen({ hostname: HOST, port: 0, socket: { data() {} } });
    const session = newSession("aegis-128l", 1);
    expect(await faultOf(to.lanes.dial(session, HOST, mute.port, 50))).toBe("expired");
  });

  test("are refused without the right secret, id or cipher, or a free lane", async () => {
    const refused = ["refused", "expired"];
    for (const cipher of CIPHERS) {
      const others = await dialOther((s) => ({ ...s, secret: changed(s.secret) }), cipher);
      expect(others).toEqual(refused);
    }
    expect(await dialOther((s) => ({ ...s, id: changed(s.id) }))).toEqual(refused);
    expect(await dialOther((s) => ({ ...s, cipher: "aes-128-gcm" }))).toEqual(refused);
    expect(await dialOther((s) => ({ ...s, cipher: "none" }))).toEqual(refused);
    expect(await dialOther((s) => ({ ...s, lanes: 3 }))).toEqual(["refused", "none"]);
  });

  test("cannot be joined a second time", async () => {
    await withSides(async (from, to, port) => {
      const session = newSession("aegis-128l", 1);
      const ends = await join(from, to, port, session);
      expect(await faultOf(to.lanes.dial(session, HOST, port, HANG_MS))).toBe("refused");
      await move(ends, 1, 0, MIB, 1n);
    });
  });

  test("open despite hundreds of strangers that send nothing or garbage", async () => {
    await withSides(async (from, to, port) => {
      const before = openFiles();
      const strangers = await Promise.all(Array.from({ length: 200 }, () => knock(port)));
      let closed = 0;
      for (const [i, stranger] of strangers.entries()) {
        stranger.on("close", () => closed++);
        stranger.on("error", () => {});
        stranger.resume();
        if (i % 2 === 0) stranger.write(new Uint8Array(50 + i).fill(i));
      }
      const ends = await join(from, to, port, newSession("aegis-128l", 4));
      await move(ends, 1, 0, MIB, 1n);
      // Connections beyond the limit close at once, the others at their timeout.
      await waitFor(() => closed >= 136, HANG_MS, "strangers turned away");
      await waitFor(() => closed === 200, HANG_MS, "strangers timed out");
      expect(openFiles()).toBeLessThanOrEqual(before);
    });
  });

  test("end on both sides when one ends them, and everything in flight resolves", async () => {
    for (const ender of ["sender", "receiver"] as const) {
      await using pair = await openPair("aegis-128l", 2, { bytes: 64 * MIB });
      const { sender, receiver } = pair;
      const received = [0, 1, 2].map((i) => receiver.receive(i, i * 16 * MIB, 16 * MIB));
      void sender.send(0, 0, 16 * MIB);
      await waitFor(() => receiver.arrived(0) > 0, HANG_MS);
      await pair[ender][Symbol.asyncDispose]();
      expect(await pair[ender].ended).toBe("closed");
      const other = ender === "sender" ? receiver : sender;
      expect(["closed", "broken"]).toContain(await other.ended);
      for (const outcome of await Promise.all(received)) {
        expect(outcome.ok || ["closed", "broken"].includes(outcome.fault)).toBe(true);
      }
      expect(await sender.send(9, 0, 1)).toEqual({ ok: false, fault: await sender.ended });
      expect(await receiver.receive(9, 0, 1)).toEqual({ ok: false, fault: await receiver.ended });
      expect(receiver.arrived(0)).toBe(0);
      receiver.cancel(0);
    }
  });

  test("that are idle end as closed on the other side", async () => {
    for (const cipher of ["aegis-128l", "none"] as const) {
      for (const ender of ["sender", "receiver"] as const) {
        await using pair = await openPair(cipher, 1);
        await pair[ender][Symbol.asyncDispose]();
        expect(await pair.sender.ended).toBe("closed");
        expect(await pair.receiver.ended).toBe("closed");
      }
    }
  });

  test("are full beyond their maximum of transfers", async () => {
    await using pair = await openPair("none", 1);
    const { sender, receiver } = pair;
    const waiting = Array.from({ length: 1024 }, (_, i) => receiver.receive(i, 0, 1));
    expect(await receiver.receive(5_000, 0, 1)).toEqual({ ok: false, fault: "full" });
    for (let i = 0; i < 1024; i++) receiver.cancel(i);
    const outcomes = await Promise.all(waiting);
    expect(outcomes.every((outcome) => !outcome.ok && outcome.fault === "cancelled")).toBe(true);
    const again = receiver.receive(5_000, 0, 1);
    void sender.send(5_000, 0, 1);
    expect((await again).ok).toBe(true);
  });

  test("whose other side stops reading do not block transfers of others", async () => {
    const options = { bytes: 64 * MIB, socketBytes: 65_536 };
    await using from = openSide(options);
    await using to = openSide(options);
    await using proxy = new GateProxy(from.lanes.listen(HOST, 0), 600_000);
    const port = await proxy.listen();
    const { sender, receiver } = await join(from, to, port, newSession("aegis-128l", 1));
    void receiver.receive(0, 0, 48 * MIB);
    void sender.send(0, 0, 48 * MIB);
    await waitFor(() => proxy.isShut, HANG_MS);
    // Begins and cancels transfers until none can be begun.
    let fault = "";
    for (let number = 1; fault !== "full"; number++) {
      const sent = sender.send(number, 0, MIB);
      sender.cancel(number);
      const outcome = await sent;
      fault = outcome.ok ? "" : outcome.fault;
    }
    expect(await sender.ended).toBe("full");
    await using other = openSide();
    const direct = from.lanes.listen(HOST, 0);
    await move(await join(from, other, direct, newSession("aegis-128l", 1)), 1, 0, MIB, 5n);
  });

  test("refuse spans outside the arena, and a number in use", async () => {
    await using pair = await openPair("none", 1, { bytes: MIB });
    const { receiver } = pair;
    void receiver.receive(1, 0, 10);
    await expect(receiver.receive(1, 20, 10)).rejects.toThrow("exists");
    await expect(receiver.receive(2, MIB, 1)).rejects.toThrow("out of range");
    await expect(receiver.receive(3, 0, 0)).rejects.toThrow("bad request");
  });

  test("work over IPv6, and with a host name", async () => {
    await using from = openSide();
    await using to = openSide();
    for (const host of ["::1", "localhost"]) {
      const address = host === "::1" ? host : (await lookup(host)).address;
      const port = from.lanes.listen(address, 0);
      const session = newSession("aegis-128l", 1);
      const expected = from.lanes.expect(session, HANG_MS);
      expect(await faultOf(to.lanes.dial(session, host, port, HANG_MS))).toBe("none");
      await expected;
    }
  });

  test("end with their lanes, and a taken port is refused", async () => {
    await using side = openSide();
    const port = side.lanes.listen(HOST, 0);
    expect(() => side.lanes.listen(HOST, port)).toThrow(NativeError);
    expect(() => side.lanes.listen("no address", 0)).toThrow("bad request");
    const expected = faultOf(side.lanes.expect(newSession("none", 1), HANG_MS));
    await side.lanes[Symbol.asyncDispose]();
    expect(await expected).toBe("closed");
    expect(await faultOf(side.lanes.expect(newSession("none", 1), 1))).toBe("closed");
    expect(() => side.lanes.listen(HOST, 0)).toThrow("closed");
  });

  test(
    "leave nothing open behind them",
    async () => {
      const before = openFiles();
      for (let i = 0; i < 20; i++) {
        await using pair = await openPair("aegis-128l", 3, { threads: 2 });
        await move(pair, i, 0, MIB, 1n);
      }
      await expectOpenFiles(before, "sessions");
    },
    HANG_MS,
  );
});
