//! Detects the vector and AES instructions of this processor.

const builtin = @import("builtin");

const Registers = struct { a: u32, b: u32, c: u32, d: u32 };

fn cpuid(leaf: u32) Registers {
    var a: u32 = undefined;
    var b: u32 = undefined;
    var c: u32 = undefined;
    var d: u32 = undefined;
    asm volatile ("cpuid"
        : [a] "={eax}" (a),
          [b] "={ebx}" (b),
          [c] "={ecx}" (c),
          [d] "={edx}" (d),
        : [leaf] "{eax}" (leaf),
          [sub] "{ecx}" (@as(u32, 0)),
    );
    return .{ .a = a, .b = b, .c = c, .d = d };
}

/// Returns the mask of registers that the kernel saves at a context switch (XCR0).
fn savedRegisters() u32 {
    return asm volatile ("xgetbv"
        : [low] "={eax}" (-> u32),
        : [index] "{ecx}" (@as(u32, 0)),
        : .{ .edx = true });
}

/// Returns true if the processor has AVX2 and AES and the kernel saves the AVX registers.
pub fn hasAvx2() bool {
    if (builtin.cpu.arch != .x86_64) return false;
    const aes_osxsave_and_avx = 1 << 25 | 1 << 27 | 1 << 28;
    const vector_registers = 0b110;
    const avx2 = 1 << 5;
    if (cpuid(0).a < 7) return false;
    if (cpuid(1).c & aes_osxsave_and_avx != aes_osxsave_and_avx) return false;
    if (savedRegisters() & vector_registers != vector_registers) return false;
    return cpuid(7).b & avx2 != 0;
}
