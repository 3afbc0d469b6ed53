import { expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { placeArena } from "../../src/app/index.ts";
import { loadNative, Region } from "../../src/native/index.ts";
import { describeNative } from "../support/index.ts";

const MIB = 2 ** 20;
/** Node 0 is there where the kernel knows nodes at all; no host has the other. */
const hasNodes = existsSync("/sys/devices/system/node/node0");
const NO_NODE = 1_000;

describeNative("an arena's places", () => {
  function place(nodes: (number | null)[], hostNodes: number, isNew = true) {
    using region = Region.create(loadNative(), {
      ...{ bytes: 8 * MIB, hugePages: "off", lockMemory: "off" },
    });
    const said: string[] = [];
    const logger = {
      info: (message: string) => void said.push(`info ${message}`),
      warn: (message: string) => void said.push(`warn ${message}`),
    };
    return { parts: placeArena(region, { nodes, isNew, logger, hostNodes }), said };
  }

  test.if(hasNodes)(
    "an arena is placed on the nodes of the devices and this is logged once",
    () => {
      const { parts, said } = place([0, 0], 2);
      expect(parts).toEqual([{ offset: 0, bytes: 8 * MIB, node: 0 }]);
      expect(said).toEqual(["info RAM distributed over the NUMA nodes of devices"]);
    },
  );

  test("an arena on a host with one node is not placed and nothing is logged", () => {
    expect(place([0], 1)).toEqual({ parts: [], said: [] });
    expect(place([null], 2)).toEqual({ parts: [], said: [] });
  });

  test("an arena is not placed if the kernel does not support NUMA placement", () => {
    const { parts, said } = place([0, NO_NODE], 2);
    expect(parts).toEqual([]);
    expect(said).toEqual(["warn the kernel does not support NUMA placement"]);
  });

  test("an inherited arena keeps its placement", () => {
    const { parts, said } = place([0, NO_NODE], 2, false);
    expect(parts.map(({ node }) => node)).toEqual([0, NO_NODE]);
    expect(said).toEqual([]);
  });
});
