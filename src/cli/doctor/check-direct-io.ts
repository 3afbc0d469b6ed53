import {
  closeSync,
  constants,
  mkdtempSync,
  openSync,
  readSync,
  rmSync,
  statfsSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { join } from "node:path";
import { messageOf } from "../../core/index.ts";
import { type Check, fail, ok, warn } from "./report.ts";

const PAGE_BYTES = 4096;
/** Magic numbers of file systems that live in memory (statfs(2)): tmpfs and ramfs. */
const IN_MEMORY = [0x0102_1994, 0x8584_58f6];

/** Writes and reads one page past the page cache in `folder`, and leaves nothing there. */
export function checkDirectIo(folder: string): Check {
  const name = `O_DIRECT ${folder}`;
  let scratch: string;
  try {
    scratch = mkdtempSync(join(folder, ".hearth-doctor-"));
  } catch (thrown) {
    const advice = "name a folder that is there and that the agent's user may write to";
    return fail(name, messageOf(thrown), advice);
  }
  try {
    tryPage(scratch);
  } catch (thrown) {
    const advice = "use a local ext4 or XFS file system: others go through the page cache";
    return warn(name, `refused: ${messageOf(thrown)}`, advice);
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
  if (IN_MEMORY.includes(statfsSync(folder).type)) {
    const advice = "name a folder on a disk: this one takes memory and is lost on restart";
    return warn(name, "works, but the file system lives in memory", advice);
  }
  return ok(name, "a page was written and read back");
}

/** Throws where the page does not come back as it went. */
function tryPage(scratch: string): void {
  const source = join(scratch, "source");
  writeFileSync(source, new Uint8Array(PAGE_BYTES).fill(0xa5));
  // A private mapping is the one buffer here whose address is sure to be a multiple of a page.
  const page = Bun.mmap(source, { shared: false });
  const flags = constants.O_RDWR | constants.O_CREAT | constants.O_EXCL | constants.O_DIRECT;
  const file = openSync(join(scratch, "target"), flags, 0o600);
  try {
    const written = writeSync(file, page, 0, PAGE_BYTES, 0);
    page.fill(0);
    const read = readSync(file, page, 0, PAGE_BYTES, 0);
    const isWhole = written === PAGE_BYTES && read === PAGE_BYTES;
    if (!isWhole || page.some((byte) => byte !== 0xa5)) throw new Error("the page came back wrong");
  } finally {
    closeSync(file);
  }
}
