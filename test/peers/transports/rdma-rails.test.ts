import { describe, expect, test } from "bun:test";
import type { RdmaPort } from "../../../src/native/index.ts";
import { pairRails, usablePorts } from "../../../src/peers/transports/rdma/index.ts";
import { PORT } from "./plain-rdma.ts";

function ip(address: string): Uint8Array {
  const gid = new Uint8Array(16).fill(0xff, 10, 12);
  gid.set(address.split(".").map(Number), 12);
  return gid;
}

function port(index: number, address: string, more: Partial<RdmaPort> = {}): RdmaPort {
  return { ...PORT, index, gid: ip(address), ...more };
}

function infiniband(index: number, subnet: number, guid: number): RdmaPort {
  const gid = new Uint8Array(16).fill(subnet, 0, 8).fill(guid, 8);
  return { ...PORT, index, gid, linkLayer: "infiniband", isRoceV2: false };
}

/** As `theirs-ours`, by index. */
function pairs(theirs: readonly RdmaPort[], ours: readonly RdmaPort[], wanted: number): string[] {
  return pairRails(theirs, ours, wanted).map(({ rail, port }) => `${rail}-${port.index}`);
}

describe("RDMA rails", () => {
  test("of one network are paired, whatever the order", () => {
    const theirs = [port(0, "10.2.0.1"), port(1, "10.1.0.1")];
    const ours = [port(0, "10.1.0.2"), port(1, "10.2.0.2"), port(2, "192.168.0.2")];
    expect(pairs(theirs, ours, 1)).toEqual(["0-1"]);
    expect(pairs(theirs, ours, 8)).toEqual(["0-1", "1-0"]);
    expect(pairs(ours, theirs, 8)).toEqual(["0-1", "1-0"]);
    expect(pairs([port(0, "10.9.0.9")], ours, 8)).toHaveLength(1);
  });

  test("that cannot reach each other are not paired", () => {
    const roce1 = port(0, "10.1.0.2", { isRoceV2: false });
    const six = { ...PORT, index: 0, gid: new Uint8Array(16).fill(0xfd) };
    const theirs = port(0, "10.1.0.1");
    for (const ours of [roce1, six, infiniband(0, 1, 1)]) {
      expect(pairs([theirs], [ours], 8)).toEqual([]);
    }
    expect(pairs([], [theirs], 8)).toEqual([]);
    expect(pairs([infiniband(0, 1, 1)], [infiniband(0, 2, 2)], 8)).toEqual([]);
    expect(pairs([infiniband(0, 1, 1)], [infiniband(0, 1, 2)], 8)).toEqual(["0-0"]);
  });

  test("that can be used are the active ones: fewest connections first, then fastest", () => {
    const ports = [
      port(0, "10.0.0.1", { state: "down" }),
      port(1, "10.0.0.2", { speed: 100 }),
      port(2, "10.0.0.3", { speed: 400 }),
      port(3, "10.0.0.4", { speed: 400 }),
      port(4, "10.0.0.5", { speed: 400, state: "fatal" }),
    ];
    const connections = new Map([[2, 1]]);
    const usable = usablePorts(ports, (index) => connections.get(index) ?? 0);
    expect(usable.map(({ index }) => index)).toEqual([3, 1, 2]);
  });
});
