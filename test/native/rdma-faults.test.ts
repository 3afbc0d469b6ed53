import { afterEach, describe, expect, test } from "bun:test";
import { NativeError, type RdmaFault, type RdmaWindow } from "../../src/native/index.ts";
import { describeNative } from "../support/native.ts";
import { waitFor } from "../support/wait.ts";
import {
  fake,
  HANG_MS,
  join,
  KIB,
  MIB,
  move,
  openPair,
  openSide,
  openThings,
  type Pair,
  portOf,
  SETTINGS,
} from "./rdma-kit.ts";

const EPERM = 1;
const EIO = 5;
const ENOMEM = 12;
const EACCES = 13;
const EBUSY = 16;
const EINVAL = 22;

function library(plan: string): string {
  fake().configure(plan);
  return fake().path;
}

async function lend(pair: Pair, at: number, bytes: number): Promise<RdmaWindow> {
  const lent = await pair.lender.lend(at, bytes).lent;
  if (!lent.ok) throw new Error(lent.fault);
  return lent.window;
}

/** Outcome of reading everything that is lent. */
async function read(pair: Pair, bytes: number): Promise<RdmaFault | "ok"> {
  const window = await lend(pair, 0, bytes);
  const done = await pair.reader.read(window, 0, bytes).done;
  return done.ok ? "ok" : done.fault;
}

/** Faults that only the stand-in can have: these tests never run on a real library. */
describeNative("RDMA with injected faults", () => {
  // After any failure, nothing is left open.
  afterEach(() => expect(openThings()).toEqual({}));

  describe("without a requirement", () => {
    test.each([
      ["no library", "/nowhere/libibverbs.so.1", "no_library", 0],
      ["another library", "libc.so.6", "too_old", 0],
    ])("there is %s", async (_, path, state, errno) => {
      await using side = openSide(path);
      expect(side.rdma.state as string).toBe(state);
      expect(side.rdma.errno).toBe(errno);
      expect(side.rdma.ports()).toEqual([]);
      expect(() => side.rdma.link(0, SETTINGS)).toThrow(NativeError);
    });

    test.each([
      ["no-device", "no_device", 0],
      ["ibv_get_device_list=38@1", "no_device", 38],
      ["memlock", "memlock", ENOMEM],
      [`reg=${EPERM}@1+`, "not_permitted", EPERM],
      [`ibv_open_device=${EACCES}@1`, "not_permitted", EACCES],
      [`ibv_open_device=${EIO}@1`, "failed", EIO],
      [`ibv_query_device=${EIO}@1`, "failed", EIO],
      [`ibv_alloc_pd=${EIO}@1`, "failed", EIO],
      [`ibv_create_comp_channel=${EIO}@1`, "failed", EIO],
      [`ibv_create_cq=${EIO}@1`, "failed", EIO],
    ])("with %s the state is %s", async (plan, state, errno) => {
      await using side = openSide(library(plan));
      expect(side.rdma.state as string).toBe(state);
      expect(side.rdma.errno).toBe(errno);
      expect(() => side.rdma.link(0, SETTINGS)).toThrow("unsupported");
    });

    test("queues that cannot be locked need a higher limit, if one applies", async () => {
      await using side = openSide(library(`ibv_create_cq=${ENOMEM}@1`));
      const limits = await Bun.file("/proc/self/limits").text();
      const isUnlimited = /Max locked memory +unlimited/.test(limits);
      expect(side.rdma.state).toBe(isUnlimited ? "failed" : "memlock");
    });

    test("a device that cannot be opened does not matter if another one can", async () => {
      await using side = openSide(library(`devices=2;ibv_open_device=${EIO}@1`));
      expect(side.rdma.state).toBe("ready");
      expect(side.rdma.ports().map(({ device }) => device)).toEqual(["standin1"]);
    });
  });

  describe("several devices and ports", () => {
    test("are all listed, in order", async () => {
      await using side = openSide(library("devices=2;ports=2;numa=1"));
      const ports = side.rdma.ports();
      expect(ports.map(({ device, number }) => `${device}/${number}`)).toEqual([
        "standin0/1",
        "standin0/2",
        "standin1/1",
        "standin1/2",
      ]);
    });

    test("are used only if named", async () => {
      const path = library("devices=3");
      await using side = openSide(path, { devices: ["standin2", "mlx5_0"] });
      expect(side.rdma.ports().map(({ device }) => device)).toEqual(["standin2"]);
      await using none = openSide(path, { devices: ["mlx5_0"] });
      expect(none.rdma.state).toBe("no_device");
      await using empty = openSide(path, { devices: [] });
      expect(empty.rdma.state).toBe("no_device");
    });

    test("are unusable with link-local addresses only", async () => {
      await using side = openSide(library("gid=none"));
      expect(side.rdma.ports().map(({ state }) => state)).toEqual(["no_address"]);
      expect(() => side.rdma.link(0, SETTINGS)).toThrow("device failed");
    });

    test("use the configured address", async () => {
      await using byRule = openSide(library(""));
      const chosen = portOf(byRule);
      await using side = openSide(fake().path, { gidIndex: 0 });
      expect(portOf(side).gidIndex).toBe(0);
      expect(portOf(side).gid).not.toEqual(chosen.gid);
      await using none = openSide(fake().path, { gidIndex: 200 });
      expect(none.rdma.ports()[0]?.state).toBe("no_address");
    });

    test("use the LID on InfiniBand", async () => {
      await using pair = openPair({ plan: "layer=infiniband" });
      const port = portOf(pair.owner);
      expect(port.linkLayer).toBe("infiniband");
      expect(port.lid).toBeGreaterThan(0);
      await move(pair, 0, MIB, 1n);
    });
  });

  describe("with devices that do less", () => {
    test.each([["no-relaxed"], ["dmabuf=off"], ["reads=1"], ["message=8192"]])(
      "%s",
      async (plan) => {
        await using pair = openPair({ plan });
        const port = portOf(pair.client);
        expect(port.hasRelaxedOrdering).toBe(plan !== "no-relaxed");
        expect(port.hasDmaBuf).toBe(plan !== "dmabuf=off");
        expect(port.readsOut).toBe(plan === "reads=1" ? 1 : 16);
        await move(pair, 100, MIB, 1n);
        if (plan === "message=8192") expect(fake().counters().reads).toBe(128);
      },
    );
  });

  test.each([[5], [10], [12], [21]])(
    "a READ that ends with %i ends its link alone",
    async (status) => {
      const path = library(`read=${status}@3`);
      await using owner = openSide(path);
      await using client = openSide(path);
      const pair = join(owner, client, { pieceBytes: 64 * KIB });
      const other = join(owner, client);
      const window = await lend(pair, 0, MIB);
      const reads = [0, 1, 2].map((i) => pair.reader.read(window, i * MIB, MIB).done);
      for (const done of await Promise.all(reads)) {
        expect(done).toEqual({ ok: false, fault: "broken" });
      }
      expect(await pair.reader.ended).toBe("broken");
      expect(await pair.reader.read(window, 0, MIB).done).toEqual({ ok: false, fault: "broken" });
      await move(other, 4 * MIB, MIB, 2n);
    },
  );

  test("a wrong bit is detected by the checksum", async () => {
    await using pair = openPair({ plan: "flip@2", settings: { pieceBytes: 64 * KIB } });
    pair.owner.arena.fill(0, MIB, 6n);
    const window = await lend(pair, 0, MIB);
    const done = await pair.reader.read(window, 0, MIB).done;
    if (!done.ok) throw new Error(done.fault);
    expect(done.checksum).not.toBe(pair.owner.arena.checksum(0, MIB));
    expect(done.checksum).toBe(pair.client.arena.checksum(0, MIB));
  });

  test("a hung read ends with its queue pair and writes nothing later", async () => {
    await using pair = openPair({ plan: "hang@1" });
    const { owner, client, reader } = pair;
    owner.arena.fill(0, MIB, 6n);
    const window = await lend(pair, 0, MIB);
    const { done, token } = reader.read(window, 0, MIB);
    await waitFor(() => fake().counters()["calls.ibv_post_send"] === 4);
    reader.cancel(token);
    expect(reader.arrived(token)).toBe(0);
    await reader[Symbol.asyncDispose]();
    expect(await done).toEqual({ ok: false, fault: "cancelled" });
    client.arena.fill(0, MIB, 9n);
    fake().configure("+release");
    expect(client.arena.firstWrong(0, MIB, 9n)).toBe(null);
  });

  test("a hung read that cannot be stopped ends when its queue pair is destroyed", async () => {
    // One state change to create each side, two to connect it, then the end of this one.
    await using pair = openPair({ plan: `hang@1;ibv_modify_qp=${EINVAL}@7` });
    const { client, reader } = pair;
    const { done } = reader.read(await lend(pair, 0, MIB), 0, MIB);
    await waitFor(() => fake().counters()["calls.ibv_post_send"] === 4);
    await reader[Symbol.asyncDispose]();
    expect(await done).toEqual({ ok: false, fault: "cancelled" });
    client.arena.fill(0, MIB, 9n);
    fake().configure("+release");
    expect(client.arena.firstWrong(0, MIB, 9n)).toBe(null);
  });

  describe("memory that cannot be registered", () => {
    test("is not lent, and the queue pair continues", async () => {
      // The probes of both sides, then the span.
      await using pair = openPair({ plan: `reg=${ENOMEM}@3` });
      const outcome = await pair.lender.lend(0, 4096).lent;
      expect(outcome).toEqual({ ok: false, fault: "unregistered" });
      await move(pair, 0, 4096, 1n);
    });

    test("is not read into, and the next read retries", async () => {
      // The probes of both sides, the lent span, and the second slice of the region.
      await using pair = openPair({ plan: `reg=${ENOMEM}@4`, bytes: 257 * MIB });
      const at = 256 * MIB;
      const window = await lend(pair, 0, MIB);
      const first = await pair.reader.read(window, at, MIB).done;
      expect(first).toEqual({ ok: false, fault: "unregistered" });
      expect((await pair.reader.read(window, at, MIB).done).ok).toBe(true);
    });
  });

  describe("a device that refuses to release", () => {
    test.each([[`ibv_dereg_mr=${EBUSY}@3`], [`ibv_destroy_qp=${EBUSY}@1`]])(
      "%s is retried",
      async (plan) => {
        await using pair = openPair({ plan });
        await move(pair, 0, MIB, 1n);
      },
    );
  });

  describe("a device that refuses", () => {
    test("to create a queue pair fails the call", async () => {
      await using side = openSide(library(`ibv_create_qp=${ENOMEM}@1;ibv_modify_qp=${EINVAL}@1`));
      expect(() => side.rdma.link(0, SETTINGS)).toThrow("device failed (errno 12)");
      expect(() => side.rdma.link(0, SETTINGS)).toThrow("device failed (errno 22)");
      await side.rdma.link(0, SETTINGS)[Symbol.asyncDispose]();
    });

    test.each([[3], [4], [5], [6]])("to connect (call %i) ends the queue pair", async (nth) => {
      await using pair = openPair({ plan: `ibv_modify_qp=${EINVAL}@${nth}` });
      const { lender, reader } = pair;
      expect(await Promise.race([lender.ended, reader.ended])).toBe("broken");
    });

    test("to read ends the queue pair", async () => {
      await using pair = openPair({ plan: `ibv_post_send=${ENOMEM}@2` });
      expect(await read(pair, 4 * MIB)).toBe("broken");
      expect(await pair.reader.ended).toBe("broken");
    });

    test("to report completions counts as failed", async () => {
      await using pair = openPair({ plan: "" });
      await move(pair, 0, MIB, 1n);
      fake().configure(`+ibv_poll_cq=${EIO}@1+`);
      const window = { address: 0n, key: 0 };
      expect(await pair.reader.read(window, 0, MIB).done).toEqual({ ok: false, fault: "port" });
      expect(pair.client.rdma.ports()[0]?.state).toBe("fatal");
    });
  });

  describe("a port", () => {
    test("that goes down ends its queue pairs, and works again when it comes up", async () => {
      const path = library("devices=2");
      await using owner = openSide(path, { devices: ["standin0"] });
      await using client = openSide(path, { devices: ["standin0"] });
      await using other = openSide(path, { devices: ["standin1"] });
      const pair = join(owner, client);
      await move(pair, 0, MIB, 1n);
      const window = await lend(pair, 0, MIB);
      fake().configure("+port=down/0");
      expect(await Promise.all([pair.reader.ended, pair.lender.ended])).toEqual(["port", "port"]);
      expect(await pair.reader.read(window, 0, 1).done).toEqual({ ok: false, fault: "port" });
      await waitFor(() => client.reported.at(-1)?.state === "down");
      expect(client.rdma.ports()[0]?.state).toBe("down");
      expect(() => client.rdma.link(0, SETTINGS)).toThrow("device failed");
      fake().configure("+port=up/0");
      const isUp = () =>
        [owner, client].every(({ reported }) => reported.at(-1)?.state === "active");
      await waitFor(isUp, HANG_MS);
      await move(join(owner, client), 0, MIB, 2n);
      expect(other.reported).toEqual([]);
    });

    test("that goes down during a read ends it", async () => {
      await using pair = openPair({ plan: "port-down@3", settings: { pieceBytes: 64 * KIB } });
      expect(["port", "broken"]).toContain(await read(pair, 4 * MIB));
      expect(["port", "broken"]).toContain(await pair.reader.ended);
      await waitFor(() => pair.client.reported.at(-1)?.state === "down");
    });

    test("of a failed device stays unusable", async () => {
      await using pair = openPair();
      await move(pair, 0, MIB, 1n);
      fake().configure("+fatal");
      expect(await Promise.all([pair.reader.ended, pair.lender.ended])).toEqual(["port", "port"]);
      await waitFor(() => pair.client.reported.at(-1)?.state === "fatal");
      expect(() => pair.client.rdma.link(0, SETTINGS)).toThrow("device failed");
    });
  });

  test("a read crosses the slices in which the region is registered", async () => {
    await using pair = openPair({ bytes: 257 * MIB });
    const edge = 256 * MIB;
    pair.owner.arena.fill(edge - MIB, 2 * MIB, 8n);
    const window = await lend(pair, edge - MIB, 2 * MIB);
    const { done } = pair.reader.read(window, edge - MIB, 2 * MIB);
    expect(await done).toEqual({
      ok: true,
      checksum: pair.owner.arena.checksum(edge - MIB, 2 * MIB),
    });
    expect(pair.client.arena.firstWrong(edge - MIB, 2 * MIB, 8n)).toBe(null);
  });

  test("a registration ends with its lending", async () => {
    await using pair = openPair();
    await move(pair, 0, MIB, 1n);
    const before = openThings();
    for (let i = 0; i < 20; i++) await move(pair, i * 8192, 8192, 2n);
    expect(openThings()).toEqual(before);
  });

  test("an arena cannot go before what reads into it", async () => {
    await using pair = openPair();
    const { arena } = pair.client;
    expect(() => arena[Symbol.dispose]()).toThrow("busy");
  });
});
