import { expect, test } from "bun:test";
import { activeDevices } from "../../src/app/index.ts";
import type { Rdma, RdmaPort } from "../../src/native/index.ts";
import { ManualClock } from "../support/index.ts";

test("devices in use are those with an active port, cached briefly", () => {
  const clock = new ManualClock();
  const port = (device: string, state: RdmaPort["state"]) => ({ device, state }) as RdmaPort;
  let looks = 0;
  let ports = [port("a", "active"), port("a", "active"), port("b", "down"), port("c", "active")];
  const rdma = {
    ports() {
      looks++;
      return ports;
    },
  } as unknown as Rdma;
  const devices = activeDevices(rdma, clock);
  expect(devices()).toEqual(["a", "c"]);
  ports = [port("a", "fatal"), port("b", "active")];
  expect(devices()).toEqual(["a", "c"]);
  expect(looks).toBe(1);
  clock.advance(250);
  expect(devices()).toEqual(["b"]);
  expect(activeDevices(null, clock)()).toEqual([]);
});
