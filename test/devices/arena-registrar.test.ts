import { describe, expect, test } from "bun:test";
import { ArenaRegistrar } from "../../src/devices/index.ts";
import type { GpuFault, GpuOutcome } from "../../src/native/index.ts";

/** A driver whose registrations end when the test says so. */
class Driver {
  readonly asked: [offset: number, bytes: number][] = [];
  readonly #ends: ((outcome: GpuOutcome) => void)[] = [];

  register(offset: number, bytes: number): Promise<GpuOutcome> {
    this.asked.push([offset, bytes]);
    return new Promise((resolve) => void this.#ends.push(resolve));
  }

  async end(outcome: GpuOutcome = { ok: true }): Promise<void> {
    this.#ends.shift()!(outcome);
    await Promise.resolve();
    await Promise.resolve();
  }
}

function open(arenaBytes: number, sliceBytes: number) {
  const gpus = new Driver();
  const faults: GpuFault[] = [];
  const onFault = (fault: GpuFault) => void faults.push(fault);
  return { gpus, faults, registrar: new ArenaRegistrar({ gpus, arenaBytes, sliceBytes, onFault }) };
}

const REFUSED: GpuFault = { ok: false, status: "device_failed", code: 2, leaked: false };

describe("the registrar", () => {
  test("registers whole slices as they are backed, one at a time, the rest last", async () => {
    const { gpus, registrar } = open(100, 30);
    registrar.ready(29);
    expect(gpus.asked).toEqual([]);
    registrar.ready(70);
    expect(gpus.asked).toEqual([[0, 30]]);
    await gpus.end();
    expect(registrar.registeredBytes).toBe(30);
    expect(gpus.asked).toEqual([
      [0, 30],
      [30, 30],
    ]);
    registrar.ready(100);
    await gpus.end();
    await gpus.end();
    expect(gpus.asked.slice(2)).toEqual([
      [60, 30],
      [90, 10],
    ]);
    await gpus.end();
    expect(registrar.registeredBytes).toBe(100);
    await registrar.stop();
  });

  test("asks no more once the driver refused", async () => {
    const { gpus, faults, registrar } = open(90, 30);
    registrar.ready(60);
    await gpus.end(REFUSED);
    registrar.ready(90);
    expect(gpus.asked.length).toBe(1);
    expect(faults).toEqual([REFUSED]);
    expect(registrar.registeredBytes).toBe(0);
    await registrar.stop();
  });

  test("stops when the slice under way has ended", async () => {
    const { gpus, registrar } = open(90, 30);
    registrar.ready(90);
    let stopped = false;
    const stopping = registrar.stop().then(() => {
      stopped = true;
    });
    await Promise.resolve();
    expect(stopped).toBe(false);
    await gpus.end();
    await stopping;
    expect(gpus.asked.length).toBe(1);
    expect(registrar.registeredBytes).toBe(30);
  });
});
