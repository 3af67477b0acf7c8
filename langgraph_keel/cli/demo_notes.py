"""The notes that the demo's agent searches: a month of a small software company, made up."""

from __future__ import annotations

NOTES = {
    "incident-0703": """\
Checkout outage, 3 July
Customers hit: Harbor Foods, Alder Clinic
Downtime: 41 minutes
A schema migration held a lock on the orders table; writes queued until the pool was empty. Rolled back.""",
    "incident-0711": """\
Slow search, 11 July
Customers hit: Alder Clinic
Downtime: 0 minutes
Answers took up to nine seconds after an index rebuild. Nobody was locked out, so no credit is owed.""",
    "incident-0719": """\
Checkout outage, 19 July
Customers hit: Harbor Foods
Downtime: 95 minutes
A certificate on the payment gateway had run out on a Saturday. Renewed by hand, renewal job repaired.""",
    "incident-0728": """\
Export outage, 28 July
Customers hit: Alder Clinic, Juniper Press
Downtime: 130 minutes
The export workers were out of disk space. Old exports are now deleted after a week.""",
    "policy-credits": """\
Service credits
Credit policy: 2 percent of the monthly fee for every started half hour of downtime
A credit is booked once per customer and month. Booking it twice is our loss: nobody sends it back.""",
    "account-harbor": """\
Account of Harbor Foods
Monthly fee: 1850.00 EUR
Uses checkout in four shops. Contact: the operations desk.""",
    "account-alder": """\
Account of Alder Clinic
Monthly fee: 990.00 EUR
Uses search and exports for appointment letters.""",
    "runbook-oncall": """\
On call
Page the second line after ten minutes. Write the incident note before going back to bed.""",
}
