/**
 * What a table adds up to: its rows, and the sum of their seals modulo 2^64. Committed with every
 * change, so that a row that is lost, doubled or of an earlier day shows when the table is read.
 */
export class Tally {
  count: number;
  sum: bigint;

  constructor(count = 0, sum = 0n) {
    this.count = count;
    this.sum = sum;
  }

  add(seal: bigint): void {
    this.count++;
    this.sum = BigInt.asUintN(64, this.sum + seal);
  }

  remove(seal: bigint): void {
    this.count--;
    this.sum = BigInt.asUintN(64, this.sum - seal);
  }

  copy(): Tally {
    return new Tally(this.count, this.sum);
  }

  equals(other: Tally): boolean {
    return this.count === other.count && this.sum === other.sum;
  }
}
