import { mkdirSync, mkdtempSync, rmSync, statfsSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const IMAGE_BYTES = 256 * 2 ** 20;
const UNMOUNT_TRIES = 200;
/**
 * EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH: from now on nothing reaches the device, and
 * what the journal had not committed is lost, as when the power goes.
 */
const SHUT_DOWN = `
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
print("ready", flush=True)
sys.stdin.readline()
fcntl.ioctl(fd, 0x8004587D, struct.pack("I", 2))
print("down", flush=True)
`;

function run(words: readonly string[]): { readonly ok: boolean; readonly output: string } {
  try {
    const { success, stdout, stderr } = Bun.spawnSync([...words]);
    return { ok: success, output: `${stdout}${stderr}`.trim() };
  } catch (thrown) {
    return { ok: false, output: `${thrown}` };
  }
}

function must(words: readonly string[]): void {
  const { ok, output } = run(words);
  if (!ok) throw new Error(`${words.join(" ")}: ${output}`);
}

/** Where the image lies: in memory where there is room, so that syncs cost nothing. */
function imageParent(): string {
  try {
    const { bavail, bsize } = statfsSync("/dev/shm");
    return bavail * bsize > 2 * IMAGE_BYTES ? "/dev/shm" : tmpdir();
  } catch {
    // Hosts without it have a temporary folder.
    return tmpdir();
  }
}

/** A switch that, once thrown, has the file system stand still. */
export interface PowerSwitch {
  /** Resolves when nothing that comes later can reach the device. */
  off(): Promise<void>;
}

/** An ext4 file system in a file, mounted through a loop device. Needs root. */
export class LoopDisk implements Disposable {
  readonly mountPoint: string;
  readonly #folder: string;
  readonly #image: string;
  readonly #python: string;
  #isMounted = false;

  /** Throws where the host does not allow it, with what it said. */
  constructor(python: string) {
    this.#python = python;
    this.#folder = mkdtempSync(join(imageParent(), "hearth-power-"));
    this.#image = join(this.#folder, "image");
    this.mountPoint = join(this.#folder, "mnt");
    try {
      mkdirSync(this.mountPoint);
      writeFileSync(this.#image, "", { mode: 0o600 });
      truncateSync(this.#image, IMAGE_BYTES);
      must(["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0", this.#image]);
      this.mount();
    } catch (thrown) {
      rmSync(this.#folder, { recursive: true, force: true });
      throw thrown;
    }
  }

  /** Mounts it, after a loss of power with what its journal gives back. */
  mount(): void {
    must(["mount", "-o", "loop", this.#image, this.mountPoint]);
    this.#isMounted = true;
  }

  /** Waits for the last process that has it open to be gone. */
  async unmount(): Promise<void> {
    for (let tries = 0; tries < UNMOUNT_TRIES; tries++) {
      if (run(["umount", this.mountPoint]).ok) {
        this.#isMounted = false;
        return;
      }
      await Bun.sleep(10);
    }
    must(["umount", this.mountPoint]);
  }

  /** Made ready beforehand: throwing it takes a fraction of a millisecond. */
  async powerSwitch(): Promise<PowerSwitch> {
    const words = [this.#python, "-c", SHUT_DOWN, this.mountPoint];
    const child = Bun.spawn(words, { stdin: "pipe", stdout: "pipe", stderr: "inherit" });
    const lines = child.stdout.pipeThrough(new TextDecoderStream()).getReader();
    const expect = async (word: string) => {
      let said = "";
      while (!said.endsWith("\n")) {
        const { value, done } = await lines.read();
        if (done) break;
        said += value;
      }
      if (said.trim() !== word) throw new Error(`the file system is not shut down: ${said}`);
    };
    await expect("ready");
    return {
      async off() {
        child.stdin.write("\n");
        child.stdin.flush();
        await expect("down");
        await child.exited;
      },
    };
  }

  [Symbol.dispose](): void {
    if (this.#isMounted && !run(["umount", this.mountPoint]).ok) {
      run(["umount", "-l", this.mountPoint]);
    }
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

/** Why no power can be lost on this host; null where it can. Tries it once. */
export async function whyNoPowerLoss(python: string): Promise<string | null> {
  if (process.platform !== "linux") return `${process.platform} has no loop-mounted ext4`;
  if (process.getuid?.() !== 0) return "mounting needs root";
  try {
    using disk = new LoopDisk(python);
    const power = await disk.powerSwitch();
    await power.off();
    await disk.unmount();
    disk.mount();
    return null;
  } catch (thrown) {
    return thrown instanceof Error ? thrown.message : `${thrown}`;
  }
}
