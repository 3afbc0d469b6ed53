import { describe, expect, test } from "bun:test";
import { type Bus, createLocalBus, LocalHub, openBus } from "../../../src/bus/index.ts";
import { seededRandom, systemClock, type WorkerId } from "../../../src/core/index.ts";
import { Announcer, announcementSubject, KnownPeers } from "../../../src/peers/directory/index.ts";
import { basics } from "../../bus/bus-bench.ts";
import { describeNats, NatsServer, waitFor } from "../../support/index.ts";
import { announcementOf } from "./announcements.ts";

const EVERY_MS = 500;

function host(bus: Bus, name: string, incarnation = 1n, cluster = "hearth") {
  const members = new KnownPeers({ self: name as WorkerId, clock: systemClock });
  const warnings: string[] = [];
  const announcer = new Announcer({
    bus,
    members,
    cluster,
    clock: systemClock,
    random: seededRandom(1),
    everyMs: EVERY_MS,
    self: () => announcementOf(name, { incarnation, cluster, everyMs: EVERY_MS }),
    log: (level, text) => void (level === "warn" && warnings.push(text)),
  });
  return {
    announcer,
    warnings,
    names: () =>
      members
        .list()
        .map(({ worker }) => worker as string)
        .sort(),
    incarnationOf: (worker: string) => members.get(worker as WorkerId)?.incarnation,
    [Symbol.dispose]() {
      announcer[Symbol.dispose]();
      members[Symbol.dispose]();
    },
  };
}

function membersContract(name: string, open: () => Promise<{ bus(): Bus } & AsyncDisposable>) {
  describe(name, () => {
    test("hosts find each other, a new host at once, and announce that they leave", async () => {
      await using world = await open();
      const [one, two] = [world.bus(), world.bus()];
      using a = host(one, "a");
      using other = host(two, "x", 1n, "other-cluster");
      const b = host(two, "b");
      await waitFor(() => a.names().length === 1 && b.names().length === 1);
      expect([a.names(), b.names(), other.names()]).toEqual([["b"], ["a"], []]);
      b[Symbol.dispose]();
      await waitFor(() => a.names().length === 0);
      await Promise.all([one.close(1_000), two.close(1_000)]);
    });

    test("a silent host is removed, and its successor counts as another host", async () => {
      await using world = await open();
      const [one, two] = [world.bus(), world.bus()];
      using a = host(one, "a");
      const b = host(two, "b", 1n);
      await waitFor(() => a.names().length === 1);
      await two.close(0);
      b[Symbol.dispose]();
      const three = world.bus();
      using _ = host(three, "b", 2n);
      await waitFor(() => a.incarnationOf("b") === 2n);
      await three.close(0);
      await waitFor(() => a.names().length === 0, 5_000);
      await one.close(1_000);
    });

    test("noise changes nothing, and a name that is taken twice is said", async () => {
      await using world = await open();
      const [one, two] = [world.bus(), world.bus()];
      using a = host(one, "a");
      await Promise.all([one.flush(5_000), two.connected(5_000)]);
      for (const noise of ["", "{}", "[1]", '{"version":1}', "\xff".repeat(100_000)]) {
        two.publish(announcementSubject("hearth"), Buffer.from(noise));
      }
      using _ = host(two, "a", 7n);
      await waitFor(() => a.warnings.length > 0);
      expect(a.warnings[0]).toContain("give each host its own node.id");
      expect(a.names()).toEqual([]);
      expect(a.announcer.stats()).toMatchObject({ heard: 0, refused: 5 });
      await Promise.all([one.close(1_000), two.close(1_000)]);
    });

    test("a flood is not read to its end", async () => {
      await using world = await open();
      const [one, two] = [world.bus(), world.bus()];
      using a = host(one, "a");
      await Promise.all([one.flush(5_000), two.connected(5_000)]);
      for (let i = 0; i < 20_000; i++)
        two.publish(announcementSubject("hearth"), Buffer.from("{}"));
      await waitFor(() => a.announcer.stats().dropped > 0, 10_000);
      await Promise.all([one.close(0), two.close(0)]);
    });
  });
}

membersContract("announcements inside a process", async () => {
  const hub = new LocalHub();
  return {
    bus: () => createLocalBus(hub, basics()),
    [Symbol.asyncDispose]: async () => undefined,
  };
});

describeNats("over NATS", () => {
  membersContract("announcements", async () => {
    const server = await NatsServer.start();
    return {
      bus: () => openBus({ ...basics(), url: server.tcpUrl, name: "members" }),
      [Symbol.asyncDispose]: () => server[Symbol.asyncDispose](),
    };
  });

  test("after the broker was away, hosts find each other again", async () => {
    await using server = await NatsServer.start();
    const open = () => openBus({ ...basics(), url: server.tcpUrl, name: "members" });
    const [one, two] = [open(), open()];
    using a = host(one, "a");
    using _ = host(two, "b");
    await waitFor(() => a.names().length === 1);
    await server.kill();
    await waitFor(() => a.names().length === 0, 10_000);
    await server.restart();
    await waitFor(() => a.names().length === 1, 10_000);
    await Promise.all([one.close(1_000), two.close(1_000)]);
  });
});
