/** Some other program that looks into the index and leaves its transaction open. */
import { Database } from "bun:sqlite";

const db = new Database(process.argv[2]!);
db.run("BEGIN IMMEDIATE");
process.stdout.write("locked\n");
setInterval(() => db.inTransaction, 1_000);
