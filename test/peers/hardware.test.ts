import { expect, test } from "bun:test";
import { mkdirSync, writeFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { join } from "node:path";
import { readHardware } from "../../src/peers/index.ts";
import { tempDir } from "../support/index.ts";

const dir = tempDir();

test("what a host has is read off its folders", () => {
  const infiniband = join(dir, "infiniband");
  for (const name of ["mlx5_1", "mlx5_0", "not a name"]) {
    mkdirSync(join(infiniband, name), { recursive: true });
  }
  const cpuInfo = join(dir, "cpuinfo");
  writeFileSync(cpuInfo, "processor\t: 0\nflags\t\t: fpu sse4_2 aes avx\n");
  expect(readHardware({ infiniband, cpuInfo })).toEqual({
    hasRdmaNic: true,
    rdmaDevices: ["mlx5_0", "mlx5_1"],
    cores: availableParallelism(),
    hasAes: true,
  });
});

test("what cannot be read is not there", () => {
  const nowhere = { infiniband: join(dir, "none"), cpuInfo: join(dir, "none") };
  expect(readHardware(nowhere)).toMatchObject({
    hasRdmaNic: false,
    rdmaDevices: [],
    hasAes: false,
  });
});

test("this host says what it is", () => {
  const { cores, rdmaDevices, hasRdmaNic } = readHardware();
  expect(cores).toBeGreaterThan(0);
  expect(hasRdmaNic).toBe(rdmaDevices.length > 0);
});
