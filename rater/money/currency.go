package money

import (
	"fmt"
	"strings"
)

// Currency is a currency of ISO 4217 with its number of decimal digits. The zero value is no currency.
type Currency struct {
	code     string
	exponent int
}

// Code returns the alphabetic code: JPY.
func (c Currency) Code() string { return c.code }

// Exponent returns the number of decimal digits of the minor unit: 0 for JPY, 2 for EUR, 3 for KWD.
func (c Currency) Exponent() int { return c.exponent }

// String returns the code.
func (c Currency) String() string { return c.code }

// CurrencyOf returns the currency with an ISO 4217 code. An unknown code is an error, never two digits by guess. Codes
// without a minor unit of their own (metals, XDR, XXX, XTS) are not currencies to invoice in, and unknown here.
func CurrencyOf(code string) (Currency, error) {
	exponent, ok := exponents[code]
	if !ok {
		return Currency{}, fmt.Errorf("currency %q: not a code of ISO 4217 (three capital letters, like JPY)", code)
	}
	return Currency{code, exponent}, nil
}

// exponents is ISO 4217's list one, active codes, by number of decimal digits. A payment provider's own exponents (UGX, ISK, HUF,
// TWD differ at some) belong to the export that speaks to that provider.
var exponents = func() map[string]int {
	m := make(map[string]int, 180)
	for exponent, codes := range map[int]string{
		0: `BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF`,
		2: `AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD CDF CHE CHF
			CHW CNY COP COU CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL
			HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU
			MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR
			SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD USN UYU UZS VED
			VES WST XAD XCD XCG YER ZAR ZMW ZWG`,
		3: `BHD IQD JOD KWD LYD OMR TND`,
		4: `CLF UYW`,
	} {
		for _, code := range strings.Fields(codes) {
			m[code] = exponent
		}
	}
	return m
}()
