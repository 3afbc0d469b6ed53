import { dlopen } from "bun:ffi";
import { expect, test } from "bun:test";
import { existsSync, readFileSync } from "node:fs";
import { loadNative, Queue, Region } from "../../src/native/index.ts";
import { describeNative } from "../support/native.ts";
import { waitFor } from "../support/wait.ts";

function queue(entries = 64): Queue {
  return new Queue(loadNative(), { entries, threads: 2, watches: 8 });
}

describeNative("the submission and completion rings", () => {
  test("each completion reaches its submitter", async () => {
    await using rings = queue();
    const rounds = 200;
    for (let round = 0; round < rounds; round++) {
      const values = Array.from({ length: 60 }, (_, i) => BigInt(round * 1000 + i));
      const done = await Promise.all(values.map((value) => rings.nop(value)));
      expect(done).toEqual(values.map((result) => ({ ok: true as const, result })));
    }
    expect(rings.inFlight).toBe(0);
  });

  test("operations beyond the ring's size are full immediately, and none is lost", async () => {
    await using rings = queue(16);
    const done = await Promise.all(Array.from({ length: 40 }, (_, i) => rings.nop(BigInt(i))));
    expect(done.slice(0, 16).every((completed) => completed.ok)).toBeTrue();
    expect(done.slice(16)).toEqual(Array(24).fill({ ok: false, status: "full", errno: 0 }));
    expect(await rings.nop(5n)).toEqual({ ok: true, result: 5n });
  });

  test("populate and checksum work on a region, which cannot close meanwhile", async () => {
    const native = loadNative();
    await using rings = queue();
    const region = Region.create(native, { bytes: 2 ** 24, hugePages: "off", lockMemory: "off" });
    const populated = rings.populate(region, 0, 2 ** 24);
    expect(await populated).toEqual({ ok: true, result: BigInt(2 ** 24) });
    expect(region.state().populatedBytes).toBe(2 ** 24);
    region.fill(0, 2 ** 24, 9n);
    const sums = Array.from({ length: 8 }, () => rings.checksum(region, 0, 2 ** 24));
    expect(native.symbols.hearth_region_close(region.handle)).toBeLessThan(0);
    const expected = region.checksum(0, 2 ** 24);
    for (const sum of await Promise.all(sums)) expect(sum).toEqual({ ok: true, result: expected });
    region[Symbol.dispose]();
    expect(await rings.checksum(region, 0, 1)).toMatchObject({ status: "stale_handle" });
  });

  test("spans outside of the region and unaligned ones are refused", async () => {
    await using rings = queue();
    const options = { bytes: 8192, hugePages: "off", lockMemory: "off" } as const;
    using region = Region.create(loadNative(), options);
    expect(await rings.checksum(region, 1, 8192)).toMatchObject({ status: "out_of_range" });
    expect(await rings.populate(region, 100, 4096)).toMatchObject({ status: "bad_request" });
  });

  test("the death of a watched process is reported once", async () => {
    const native = loadNative();
    await using rings = queue();
    const child = Bun.spawn(["sleep", "60"]);
    let deaths = 0;
    const pidFd = openPidFd(child.pid);
    rings.watch(pidFd, () => deaths++);
    await rings.nop(1n);
    expect(deaths).toBe(0);
    child.kill("SIGKILL");
    await waitFor(() => deaths === 1);
    await rings.nop(1n);
    expect(deaths).toBe(1);
    expect(native.symbols.hearth_close_fd(pidFd)).toBeLessThan(0);
  });

  test("an ended watch reports nothing", async () => {
    await using rings = queue();
    const child = Bun.spawn(["sleep", "60"]);
    let deaths = 0;
    const watch = rings.watch(openPidFd(child.pid), () => deaths++);
    watch[Symbol.dispose]();
    child.kill("SIGKILL");
    await child.exited;
    await rings.nop(1n);
    expect(deaths).toBe(0);
  });

  test("the watch owns the descriptor of a dead process until it ends", async () => {
    await using rings = queue();
    const first = Bun.spawn(["sleep", "60"]);
    const second = Bun.spawn(["sleep", "60"]);
    const deaths: string[] = [];
    const pidFd = openPidFd(first.pid);
    const watch = rings.watch(pidFd, () => deaths.push("first"));
    process.kill(first.pid, "SIGKILL");
    // The event loop does not run here, as in a server that is busy with other sockets.
    while (stateOf(first.pid) !== "Z") Bun.sleepSync(1);
    Bun.sleepSync(20);
    expect(existsSync(`/proc/self/fd/${pidFd}`)).toBeTrue();
    watch[Symbol.dispose]();
    expect(openPidFd(second.pid)).toBe(pidFd);
    rings.watch(pidFd, () => deaths.push("second"));
    await rings.nop(1n);
    expect(deaths).toEqual([]);
    second.kill("SIGKILL");
    await waitFor(() => deaths.length > 0);
    expect(deaths).toEqual(["second"]);
  });

  test("deaths of ended watches do not fill the ring", async () => {
    await using rings = new Queue(loadNative(), { entries: 1, threads: 1, watches: 2 });
    const child = Bun.spawn(["true"]);
    const pidFds = Array.from({ length: 24 }, () => openPidFd(child.pid));
    await child.exited;
    let deaths = 0;
    for (const pidFd of pidFds) {
      rings.watch(pidFd, () => deaths++)[Symbol.dispose]();
      Bun.sleepSync(1);
      await Promise.resolve();
    }
    expect(await rings.nop(7n)).toEqual({ ok: true, result: 7n });
    expect(deaths).toBe(0);
  });

  test("watches are bounded", async () => {
    await using rings = new Queue(loadNative(), { entries: 8, threads: 1, watches: 1 });
    const first = openPidFd(process.pid);
    using _watch = rings.watch(first, () => {});
    const second = openPidFd(process.pid);
    expect(() => rings.watch(second, () => {})).toThrow("full");
    loadNative().closeFd(second);
  });
});

/** `Z` for a process that has ended and was not reaped. */
function stateOf(pid: number): string {
  return readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1]![0]!;
}

/** A descriptor of a process. A server gets it from a socket's peer; here it is opened directly. */
function openPidFd(pid: number): number {
  const libc = dlopen("libc.so.6", {
    syscall: { args: ["i64", "i32", "u32"], returns: "i32" },
  });
  const pidfdOpen = 434;
  return libc.symbols.syscall(pidfdOpen, pid, 0);
}
