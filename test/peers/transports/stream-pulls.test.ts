import { expect, test } from "bun:test";
import { acceptedCiphers } from "../../../src/peers/index.ts";
import { describeNative, waitFor } from "../../support/index.ts";
import { placesFor, pullPlaces } from "./contract-kit.ts";
import type { PlainLink } from "./plain-lanes.ts";
import { StreamPair } from "./stream-kit.ts";

describeNative("pulls of a stream transport", () => {
  test("a block of the expected length needs no second round trip", async () => {
    await using pair = await StreamPair.make();
    const { server } = pair.serverHost;
    const items = [server.put(1, 5_000), { ...server.put(2, 5_000), bytesMax: 6_000 }];
    await using connection = await pair.connection();
    const places = placesFor(items);
    expect((await pullPlaces(connection, places.slice(0, 1))).fault).toBeNull();
    expect(pair.network.received).toBe(1);
    const { results } = await pullPlaces(connection, places.slice(1));
    expect(results[0]).toMatchObject({ kind: "came", header: { bytes: 5_000 } });
    // Announced with the expected length, and again with the real one.
    expect(pair.network.received).toBe(3);
    expect(pair.client.region.firstWrong(places[1]!.offset, 5_000, 2n)).toBeNull();
  });

  test("more blocks than can be announced arrive, and no more are announced at once", async () => {
    await using pair = await StreamPair.make({}, { limits: { announcedMax: 8 } });
    const { server } = pair.serverHost;
    const items = Array.from({ length: 60 }, (_, index) => server.put(index + 1, 3_000));
    await using connection = await pair.connection();
    const receiver = pair.network.connections[1]!;
    let most = 0;
    pair.network.onSlice = async () => {
      most = Math.max(most, receiver.announced);
      await new Promise((resolve) => setImmediate(resolve));
    };
    const places = placesFor(items);
    const [one, two] = await Promise.all([
      pullPlaces(connection, places.slice(0, 30)),
      pullPlaces(connection, places.slice(30)),
    ]);
    expect([one.fault, two.fault]).toEqual([null, null]);
    expect([...one.results, ...two.results].every((result) => result?.kind === "came")).toBe(true);
    // Slot references of two concurrent pulls, and places announced ahead.
    expect(most).toBeLessThanOrEqual(8 + 2 * 16);
    expect(receiver.announced).toBe(0);
  });

  test("without a free transfer the block is busy, and the connection stays", async () => {
    await using pair = await StreamPair.make();
    const { server } = pair.serverHost;
    const items = [1, 2, 3].map((seed) => server.put(seed, 5_000));
    await using connection = await pair.connection();
    pair.network.full = 1;
    const first = await pullPlaces(connection, placesFor(items));
    expect(first.fault).toBeNull();
    expect(first.results.map((result) => result?.kind)).toEqual(["busy", "came", "came"]);
    const again = await pullPlaces(connection, placesFor(items));
    expect(again.results.every((result) => result?.kind === "came")).toBe(true);
  });

  test("lanes that break end the connection and release slot references", async () => {
    await using pair = await StreamPair.make();
    const { server } = pair.serverHost;
    const items = [1, 2].map((seed) => server.put(seed, 500_000));
    const ends: ((connections: readonly PlainLink[]) => void)[] = [
      ([sender]) => sender!.end("broken"),
      ([, receiver]) => receiver!.end("forged"),
    ];
    for (const end of ends) {
      pair.network.connections.length = 0;
      await using connection = await pair.connection();
      let slices = 0;
      pair.network.onSlice = async () => {
        if (++slices === 5) end(pair.network.connections);
        await new Promise((resolve) => setImmediate(resolve));
      };
      const { fault } = await pullPlaces(connection, placesFor(items));
      expect(fault?.kind).toBe("broken");
      expect((await connection.ended).why).toContain("lane");
      await waitFor(() => server.lent === 0 && pair.serverHost.transport.inboundConnections === 0);
    }
  });

  test("the client's first cipher that both sides allow encrypts the lanes", async () => {
    const choices = [
      [["aegis-128l", "aes-128-gcm"], ["aegis-128l", "aes-128-gcm"], "aegis-128l"],
      [["aegis-128l", "aes-128-gcm"], ["aes-128-gcm"], "aes-128-gcm"],
      [["aes-128-gcm"], ["none", "aegis-128l", "aes-128-gcm"], "aes-128-gcm"],
      [["none", "aegis-128l"], ["none", "aes-128-gcm", "aegis-128l"], "none"],
      [["aegis-128l"], ["none", "aegis-128l"], "aegis-128l"],
      [["aegis-128l"], ["aes-128-gcm"], null],
    ] as const;
    for (const [theirs, ours, chosen] of choices) {
      const lanes = { lanes: 3 };
      await using pair = await StreamPair.make({ ciphers: theirs, ...lanes }, { ciphers: ours });
      const dialled = await pair.dial();
      expect(dialled.ok).toBe(chosen !== null);
      if (!dialled.ok) expect(dialled.fault).toMatchObject({ kind: "refused" });
      const sessions = pair.network.sessions.map(({ cipher, lanes }) => ({ cipher, lanes }));
      expect(sessions).toEqual(chosen === null ? [] : [{ cipher: chosen, lanes: 2 }]);
      expect(pair.client.transport.capabilities.encrypted).toBe(!ours.includes("none" as never));
    }
  });

  test("a required cipher is the only one; unencrypted payload needs a trusted network", () => {
    const sealed = { cipher: "aegis-128l", trustedNetwork: false } as const;
    expect(acceptedCiphers(sealed)).toEqual(["aegis-128l", "aes-128-gcm"]);
    expect(acceptedCiphers({ ...sealed, cipher: "aes-128-gcm" })).toEqual(["aes-128-gcm"]);
    expect(acceptedCiphers({ ...sealed, trustedNetwork: true })).not.toContain("none");
    const clear = { cipher: "none", trustedNetwork: true } as const;
    expect(acceptedCiphers(clear)).toEqual(["none", "aegis-128l", "aes-128-gcm"]);
    expect(() => acceptedCiphers({ ...clear, trustedNetwork: false })).toThrow("trusted network");
  });

  test("each connection has its own session and secret, and neither is logged", async () => {
    await using pair = await StreamPair.make();
    await using _one = await pair.connection();
    await using _two = await pair.connection();
    const [a, b] = pair.network.sessions;
    for (const part of ["id", "secret"] as const) {
      expect(a![part].toHex()).not.toBe(b![part].toHex());
      expect(new Set(a![part]).size).toBeGreaterThan(4);
    }
    const logs = JSON.stringify([pair.serverHost.log, pair.client.log]);
    for (const { secret } of pair.network.sessions) expect(logs).not.toContain(secret.toHex());
  });

  test("a connection's requests wait in order, and may give up waiting", async () => {
    const limits = { connectionRequestsMax: 4, waitingMax: 3 };
    await using pair = await StreamPair.make({ limits }, { limits });
    const { server } = pair.serverHost;
    const gates: (() => void)[] = [];
    server.onCall = () =>
      new Promise((resolve) => gates.push(() => resolve({ op: "refused", why: "done" })));
    await using connection = await pair.connection();
    const abort = new AbortController();
    const call = (signal?: AbortSignal) =>
      connection.call({ op: "find", names: [] }, { deadlineMs: 5_000, ...(signal && { signal }) });
    const [first, second, third] = [call(), call(), call()];
    const given = call(abort.signal);
    const fourth = call();
    const crowded = await call();
    expect(crowded).toMatchObject({ ok: false, fault: { kind: "stalled" } });
    abort.abort();
    expect(await given).toMatchObject({ ok: false, fault: { kind: "aborted" } });
    await waitFor(() => gates.length === 2);
    expect(server.asked).toBe(2);
    gates.shift()!();
    gates.shift()!();
    await waitFor(() => gates.length === 2);
    for (const gate of gates) gate();
    for (const called of await Promise.all([first, second, third, fourth])) {
      expect(called.ok).toBe(true);
    }
  });
});
