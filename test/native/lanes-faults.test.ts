import { afterEach, describe, expect, test } from "bun:test";
import { loadNative, openLanes, setFaults } from "../../src/native/index.ts";
import { GateProxy } from "../support/gate-proxy.ts";
import { describeNative } from "../support/native.ts";
import { waitFor } from "../support/wait.ts";
import { expectOpenFiles, openFiles } from "./disk-kit.ts";
import {
  faultOf,
  HOST,
  join,
  MIB,
  move,
  newSession,
  openPair,
  openSide,
  withSides,
} from "./lanes-kit.ts";

describeNative("lanes on a host that refuses", () => {
  afterEach(() => setFaults(loadNative(), ""));

  describe.each(["lanes.memory", "lanes.eventfd", "lanes.epoll", "lanes.thread"])("%s", (point) => {
    test("are not opened, and leave nothing open", async () => {
      const before = openFiles();
      await using side = openSide();
      setFaults(loadNative(), `${point}:1:ENOMEM`);
      const options = { region: side.arena, threads: 2, socketBytes: 0 };
      expect(() => openLanes(loadNative(), options)).toThrow("no memory");
      setFaults(loadNative(), `${point}:2:ENOMEM`);
      if (point !== "lanes.memory") {
        expect(() => openLanes(loadNative(), options)).toThrow("no memory");
      }
      setFaults(loadNative(), "");
      await side[Symbol.asyncDispose]();
      await expectOpenFiles(before, point);
    });
  });

  test("out of descriptors: the dialler gets a fault, and the listener recovers", async () => {
    await withSides(async (from, to, port) => {
      const session = newSession("aegis-128l", 2);
      setFaults(loadNative(), "lane.socket:4:EMFILE");
      expect(await faultOf(to.lanes.dial(session, HOST, port, 1_000))).toBe("unreachable");
      setFaults(loadNative(), "lane.accept:1:EMFILE;lane.accept:3:ECONNABORTED");
      await move(await join(from, to, port, session), 1, 0, MIB, 1n);
    });
  });

  test("out of memory for connections: the dialler and a rejected peer get a fault", async () => {
    await withSides(async (from, to, port) => {
      const session = newSession("aegis-128l", 1);
      setFaults(loadNative(), "lanes.memory:1+:ENOMEM");
      expect(await faultOf(to.lanes.dial(session, HOST, port, 1_000))).toBe("unreachable");
      const { promise: closed, resolve } = Promise.withResolvers<void>();
      await Bun.connect({ hostname: HOST, port, socket: { data() {}, close: () => resolve() } });
      await closed;
      setFaults(loadNative(), "");
      await move(await join(from, to, port, session), 1, 0, MIB, 1n);
    });
  });

  test("out of memory for records: the session is broken, and its spans are free", async () => {
    await using pair = await openPair("aegis-128l", 1);
    setFaults(loadNative(), "lanes.memory:1+:ENOMEM");
    const received = pair.receiver.receive(1, 0, MIB);
    const sent = pair.sender.send(1, 0, MIB);
    expect(await sent).toEqual({ ok: false, fault: "broken" });
    expect((await received).ok).toBe(false);
    expect(await pair.sender.ended).toBe("broken");
  });

  test("out of memory for the rest of a record: no transfer waits for its span", async () => {
    let gate: GateProxy | null = null;
    const options = { bytes: 64 * MIB, socketBytes: 65_536 };
    await using pair = await openPair("none", 1, options, (port) => {
      gate = new GateProxy(port, 600_000);
      return gate.listen();
    });
    await using _ = gate!;
    const received = pair.receiver.receive(1, 0, 48 * MIB);
    const sent = pair.sender.send(1, 0, 48 * MIB);
    await waitFor(() => gate!.isShut && pair.receiver.arrived(1) > 0);
    setFaults(loadNative(), "lanes.memory:1+:ENOMEM");
    pair.sender.cancel(1);
    pair.receiver.cancel(1);
    expect(await sent).toEqual({ ok: false, fault: "cancelled" });
    expect(await received).toEqual({ ok: false, fault: "cancelled" });
    expect(await pair.sender.ended).toBe("broken");
    expect(await pair.receiver.ended).toBe("broken");
  });

  test.each(["lane.send", "lane.receive"])("%s that fails ends the session", async (point) => {
    for (const errno of ["ECONNRESET", "ETIMEDOUT", "ENOBUFS"]) {
      await using pair = await openPair("aegis-128l", 1);
      setFaults(loadNative(), `${point}:2+:${errno}`);
      const received = pair.receiver.receive(1, 0, 8 * MIB);
      void pair.sender.send(1, 0, 8 * MIB);
      expect(await received).toEqual({ ok: false, fault: "broken" });
      expect(["broken", "closed"]).toContain(await pair.receiver.ended);
      expect(["broken", "closed"]).toContain(await pair.sender.ended);
      setFaults(loadNative(), "");
    }
  });

  test.each(["aegis-128l", "none"] as const)("%s: partial calls are continued", async (cipher) => {
    await using pair = await openPair(cipher, 1);
    setFaults(loadNative(), "lane.send:5:EINTR;lane.receive:5:EINTR;lane.send:8:EINTR");
    await move(pair, 1, 0, 8 * MIB, 1n);
  });
});
