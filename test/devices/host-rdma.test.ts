import { describe, expect, test } from "bun:test";
import { HostRdma } from "../../src/devices/index.ts";
import type { Rdma, RdmaOptions, RdmaPort, RdmaState } from "../../src/native/index.ts";
import { watchedHealth } from "./watched-health.ts";

const PORT: RdmaPort = {
  ...{ index: 0, device: "mlx5_0", number: 1, state: "active", gid: new Uint8Array(16) },
  ...{ gidIndex: 3, isRoceV2: true, lid: 0, linkLayer: "ethernet", mtu: 4096 },
  ...{ readsOut: 16, readsIn: 16, messageBytesMax: 2 ** 30, speed: 100_000, numaNode: 0 },
  ...{ hasRelaxedOrdering: true, hasDmaBuf: true },
};

/** Verbs as a script has them. */
function open(ports: RdmaPort[], state: RdmaState = "ready", errno = 0) {
  const watched = watchedHealth();
  const told: { changed: (() => void) | null; ports: RdmaPort[]; closed: boolean } = {
    changed: null,
    ports,
    closed: false,
  };
  const make = ({ onPort }: RdmaOptions): Rdma => {
    told.changed = () => onPort(told.ports[0]!);
    return {
      state,
      errno,
      ports: () => told.ports,
      link: () => {
        throw new Error("nobody links here");
      },
      [Symbol.asyncDispose]: async () => {
        told.closed = true;
      },
    };
  };
  const { clock, health, log } = watched;
  const verbs = {} as Omit<RdmaOptions, "onPort">;
  const host = new HostRdma({ verbs, clock, health, log, open: make });
  return { ...watched, told, host };
}

const down = (port: RdmaPort): RdmaPort => ({ ...port, state: "down" });

describe("ports", () => {
  test("one that goes down is the matter until it is back; each change is a line", async () => {
    const { told, host, health, details, lines } = open([PORT]);
    expect(health.list()).toEqual([]);
    told.ports = [down(PORT)];
    told.changed!();
    expect(details("RDMA_PORT_DOWN")).toStartWith("mlx5_0/1 Ethernet 100 Gb/s is down (");
    told.changed!();
    told.ports = [PORT];
    told.changed!();
    expect(health.isRaised("RDMA_PORT_DOWN")).toBe(false);
    const changes = lines.filter(({ message }) => message === "RDMA port state changed");
    expect(changes.map(({ fields }) => fields.state)).toEqual(["down", "active"]);
    await host[Symbol.asyncDispose]();
    expect(told.closed).toBe(true);
  });

  test("one that comes back without a word is found, more and more seldom looked for", async () => {
    const { told, host, clock, health } = open([{ ...PORT, state: "no_address" }]);
    expect(health.isRaised("RDMA_PORT_DOWN")).toBe(true);
    let looks = 0;
    const ports = told.ports;
    Object.defineProperty(told, "ports", {
      get: () => {
        looks++;
        return looks > 10 ? [PORT] : ports;
      },
    });
    // Looks after 1, 2, 4, 8, 16, 30, 30 s.
    clock.advance(61_000);
    expect(looks).toBe(6);
    clock.advance(200_000);
    expect(health.isRaised("RDMA_PORT_DOWN")).toBe(false);
    const before = looks;
    clock.advance(600_000);
    expect(looks).toBe(before);
    await host[Symbol.asyncDispose]();
  });

  test("one that never had a cable is no problem, beside one that works", async () => {
    const second = down({ ...PORT, index: 1, number: 2 });
    const { host, health } = open([PORT, second]);
    expect(health.list()).toEqual([]);
    expect(host.report().ports.map(({ name, state }) => [name, state])).toEqual([
      ["mlx5_0/1", "active"],
      ["mlx5_0/2", "down"],
    ]);
    await host[Symbol.asyncDispose]();
  });

  test("after the end nothing is looked at", async () => {
    const { told, host, clock, health } = open([down(PORT)]);
    await host[Symbol.asyncDispose]();
    expect(health.isRaised("RDMA_PORT_DOWN")).toBe(false);
    told.changed!();
    clock.advance(100_000);
    expect(health.isRaised("RDMA_PORT_DOWN")).toBe(false);
  });
});

describe("verbs that cannot be used", () => {
  test.each([
    ["memlock", 12, "RDMA_MEMLOCK", "LimitMEMLOCK=infinity"],
    ["not_permitted", 13, "RDMA_DEVICE", "errno 13"],
    ["too_old", 0, "RDMA_DEVICE", "update rdma-core"],
    ["failed", 5, "RDMA_DEVICE", "errno 5"],
  ] as const)("%s is one line with what to do", async (state, errno, code, says) => {
    const { host, lines, details } = open([], state, errno);
    expect(host.isUsable).toBe(false);
    expect(details(code)).toContain(says);
    expect(lines.length).toBe(1);
    expect(lines[0]!.level).toBe("warn");
    await host[Symbol.asyncDispose]();
  });

  test.each(["no_library", "no_device"] as const)("%s is no problem", async (state) => {
    const { host, lines } = open([], state);
    expect(host.finding.kind).toBe("absent");
    expect(lines).toEqual([]);
    await host[Symbol.asyncDispose]();
  });
});
