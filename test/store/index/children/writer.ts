/**
 * Writes rows to the index in the folder it is given until it is killed, and prints one line for
 * each thing it was answered: that it has begun, then `{ flushed, removed }` after each flush that
 * was true: rows up to `flushed` are committed, and every tenth up to `removed` is gone again.
 */
import { openIndex, rowOf } from "../index-kit.ts";

const [folder = "", incarnation = "1", durable = ""] = process.argv.slice(2);
const LAG = 300;

function say(line: object): void {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

const index = await openIndex(folder, { incarnation: BigInt(incarnation) });
const begun = await index.begin();
say({ begun, setAside: index.state.setAside });
let removed = 0;
for (let sequence = 1; ; ) {
  for (const end = sequence + 137; sequence < end; sequence++) {
    index.put(rowOf(sequence));
    if (sequence % 10 !== 0 || sequence <= LAG) continue;
    removed = sequence - LAG;
    index.remove(rowOf(removed).digest, rowOf(removed).layer);
  }
  const flushed = sequence - 1;
  if (await index.flush({ durable: durable !== "" })) say({ flushed, removed });
}
