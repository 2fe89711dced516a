use super::*;

/// The time of each cause that has some.
fn times(causes: &Causes) -> Vec<(Cause, u64)> {
    causes.ps().filter(|(_, ps)| *ps > 0).collect()
}

fn in_program() -> Causes {
    let mut causes = Causes::new(1, true);
    causes.in_program(0);
    causes
}

#[test]
fn time_is_that_of_the_entry_until_its_return() {
    let mut causes = in_program();
    causes.begins(0, Role::Entry(Cause::SystemCalls));
    causes.took(0, 10);
    // The call copies from memory that is not there, and is interrupted meanwhile.
    causes.begins(0, Role::Entry(Cause::PageFaults));
    causes.took(0, 200);
    causes.begins(0, Role::Entry(Cause::Timer));
    causes.took(0, 3000);
    causes.returned(0);
    causes.took(0, 400);
    causes.returned(0);
    causes.took(0, 50);
    causes.in_program(0);
    // Before the entry's address, an interrupt's own instructions.
    causes.took(0, 1);
    let expected = [
        (Cause::SystemCalls, 60),
        (Cause::PageFaults, 600),
        (Cause::Timer, 3000),
        (Cause::Interrupts, 1),
    ];
    assert_eq!(times(&causes), expected);
}

#[test]
fn a_functions_time_is_its_own_until_it_returns_whoever_called_it() {
    let mut causes = in_program();
    causes.begins(0, Role::Entry(Cause::SystemCalls));
    causes.calls(0, Cause::Reclaim, 0x1000);
    causes.took(0, 5);
    causes.calls(0, Cause::Migration, 0x0F00);
    causes.took(0, 70);
    // Other returns end nothing.
    causes.returns(0, 0x0E00);
    causes.took(0, 20);
    causes.returns(0, 0x0F08);
    causes.took(0, 2);
    causes.returns(0, 0x1008);
    causes.took(0, 1);
    let expected = [(Cause::SystemCalls, 1), (Cause::Migration, 90), (Cause::Reclaim, 7)];
    assert_eq!(times(&causes), expected);
}

#[test]
fn a_fault_that_turns_out_to_be_a_hint_fault_was_one_from_its_beginning() {
    let mut causes = in_program();
    causes.begins(0, Role::Entry(Cause::PageFaults));
    causes.took(0, 100);
    causes.calls(0, Cause::Migration, 0x1000);
    causes.took(0, 1000);
    causes.returns(0, 0x1008);
    causes.begins(0, Role::HintFault);
    causes.took(0, 10);
    causes.in_program(0);
    causes.begins(0, Role::Entry(Cause::PageFaults));
    causes.took(0, 7);
    let expected = [(Cause::PageFaults, 7), (Cause::HintFaults, 110), (Cause::Migration, 1000)];
    assert_eq!(times(&causes), expected);
}

#[test]
fn each_task_keeps_what_it_does_while_another_runs() {
    let mut causes = in_program();
    causes.begins(0, Role::Entry(Cause::PageFaults));
    causes.switches(0, Switch::From, 0xA000);
    causes.switches(0, Switch::To, 0xB000);
    causes.begins(0, Role::NewTask);
    causes.took(0, 30);
    causes.switches(0, Switch::From, 0xB000);
    // One of which nothing is known, and which turns out to be a program in a system call.
    causes.switches(0, Switch::To, 0xC000);
    causes.took(0, 4);
    causes.in_program(0);
    causes.begins(0, Role::Entry(Cause::Timer));
    causes.switches(0, Switch::From, 0xC000);
    causes.switches(0, Switch::To, 0xA000);
    causes.took(0, 500);
    causes.switches(0, Switch::From, 0xA000);
    causes.switches(0, Switch::To, 0xD000);
    causes.waits(0);
    causes.took(0, 6000);
    let expected = [
        (Cause::SystemCalls, 4),
        (Cause::PageFaults, 500),
        (Cause::Threads, 30),
        (Cause::Idle, 6000),
    ];
    assert_eq!(times(&causes), expected);
}

#[test]
fn without_symbols_nothing_is_claimed() {
    let mut causes = Causes::new(1, false);
    causes.in_program(0);
    causes.begins(0, Role::Entry(Cause::SystemCalls));
    causes.took(0, 9);
    assert_eq!(times(&causes), [(Cause::Unknown, 9)]);
}

#[test]
fn roles_are_those_of_the_symbols() {
    let names = [
        "entry_SYSCALL_64",
        "asm_exc_page_fault",
        "asm_sysvec_apic_timer_interrupt",
        "asm_common_interrupt",
        "migrate_pages",
        RETURN,
        SWITCH,
    ];
    assert!(names.iter().all(|name| is_needed(name)));
    assert!(!is_needed("printk"));
    let symbols: Vec<Symbol> = (1..)
        .zip(names)
        .map(|(at, name)| Symbol { name: name.to_owned(), address: at << 12 })
        .collect();
    let addresses = Addresses::of(&symbols);
    assert!(addresses.are_known());
    assert!(!Addresses::of(&symbols[..6]).are_known() && !Addresses::default().are_known());
    assert_eq!(addresses.role(2 << 12), Role::Entry(Cause::PageFaults));
    assert_eq!(addresses.role(4 << 12), Role::Entry(Cause::Interrupts));
    assert_eq!(addresses.role(5 << 12), Role::Function(Cause::Migration));
    assert_eq!(addresses.role(5 << 12 | 4), Role::None);
    assert!(addresses.is_return(6 << 12) && !addresses.is_return(7 << 12));
    let (from, to) = ([0x48, 0x89, 0xA7, 0x18, 0x0B, 0, 0], [0x48, 0x8B, 0xA6, 0x18, 0x0B, 0, 0]);
    assert_eq!(addresses.switch(7 << 12 | 14, &from), Some(Switch::From));
    assert_eq!(addresses.switch(7 << 12 | 21, &to), Some(Switch::To));
    assert_eq!(addresses.switch(8 << 12, &to), None);
    assert_eq!(addresses.switch(7 << 12, &[0x55]), None);
}

#[test]
fn a_functions_first_push_is_found_unless_the_stack_was_used_before() {
    let endbr: &[u8] = &[0xF3, 0x0F, 0x1E, 0xFA];
    let nop: &[u8] = &[0x0F, 0x1F, 0x44, 0, 0];
    let find =
        |code: &[&'static [u8]]| first_push([endbr, nop].into_iter().chain(code.iter().copied()));
    assert_eq!(find(&[&[0x55]]), Some(2));
    // mov rbp,rdi; push r15
    assert_eq!(find(&[&[0x48, 0x89, 0xFD], &[0x41, 0x57]]), Some(3));
    // sub rsp,8; push rbx
    assert_eq!(find(&[&[0x48, 0x83, 0xEC, 8], &[0x53]]), None);
    assert_eq!(find(&[]), None);
    for code in [&[0xC3][..], &[0xF3, 0xC3], &[0xC2, 8, 0]] {
        assert!(is_return(code));
    }
    assert!(!is_return(&[0xC9]));
}
